"""Commands that inspect a model or list the kernels: info, explore, report, kernels."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated

import typer

from gppvae.cli.errors import one_line_errors
from gppvae.cli.inputs import fit_data
from gppvae.cli.options import OUTPUT, Run, SampleOptions, Shown, ValidationOptions, option_in, with_options
from gppvae.cli.output import answer, print_pairs

EXPLORE_TABLE = "Training table; without samples the page only shows which rows were measured."


@with_options
def info(*, run: Run, shown: Shown) -> None:
    """Show a fitted model: settings, what the kernel learned, columns, final metrics."""
    with one_line_errors():
        # Read from the header of the model file, since importing PyTorch takes seconds.
        from gppvae.data.settings import settings_rows
        from gppvae.report import describe

        model = describe.read_saved(run)
        ends = describe.final_metrics(model.history_)
        facts = describe.run_facts(run, model)
        of_model = [("kernel", model.kernel), ("shape of a sample", str(model.shape_))]
        if model.sample_names_:
            of_model.append(
                ("values of a sample", ", ".join(model.sample_names_[:8]) + ", ..." * (len(model.sample_names_) > 8))
            )
        if shown.as_json:
            result = {
                "kind": model.kind,
                "kernel": model.kernel,
                "shape": model.shape_,
                "names": model.sample_names_,
                "learned": dict(model.learned),
                "columns": dict(model.columns),
                "settings": model.resolved_,
                "metrics": {phase: {"at": epoch} | values for phase, epoch, values in ends},
                "run": facts,
            }
            answer(shown, result)
            return
        metrics = [(f"{phase}, {epoch}", "  ".join(f"{name} {value:.4g}" for name, value in values.items()))
                   for phase, epoch, values in ends]  # fmt: skip
        print_pairs("model", of_model)
        print_pairs("learned", model.learned)
        print_pairs("columns", model.columns)
        print_pairs("phases", describe.phase_rows(model))
        print_pairs("end of training", metrics)
        print_pairs("settings", settings_rows(model.resolved_))
        print_pairs("run", [(name, str(value)) for name, value in facts.items()])


@with_options
def explore(
    *,
    run: Run,
    table: Annotated[Path | None, typer.Option(help=EXPLORE_TABLE, show_default="none")] = None,
    source: SampleOptions,
    held_out: ValidationOptions,
    port: Annotated[int, option_in(OUTPUT, min=0, max=65535, help="Port on this machine; 0 for a free one.")] = 0,
    browser: Annotated[bool, option_in(OUTPUT, "--browser/--no-browser", help="Open the page in the browser.")] = True,
    shown: Shown,
) -> None:
    """Explore a fitted model on a live page: pick a cell, drag a slider, switch terms off, add a new object.

    The page is served on this machine only, at an address with a random token. Ctrl-C stops it. Nothing is written.

    Example: gppvae explore runs/faces --table faces.csv --data photos/
    """
    with one_line_errors():
        from gppvae.estimator import GPPVAE
        from gppvae.explore import serving
        from gppvae.explore.sources import Source, demo_source, make_part, other_data

        serving.check_installed()
        model = GPPVAE.load(run)
        if table is None:
            named = [name for name, value in (vars(source) | vars(held_out)).items() if value not in (None, False)]
            if named:
                raise ValueError(f"expected --table beside --{named[0].replace('_', '-')}, got none; give the table")
            found = demo_source(run, model) or Source()
        else:
            no_samples = not (source.data or source.samples or model.sample_names_ or table.suffix == ".h5ad")
            train, held = fit_data(table, source, held_out, model.kernel, model.seed, model.sample_names_, no_samples)
            found = Source(make_part(model, train[1], train[0]))
            if held is not None:
                found.held = make_part(model, held[1], held[0])
            found.notes += other_data(run, found.train)

        def announce(address: str) -> None:
            answer(shown, {"address": address}, f"live page: {address}  (Ctrl-C stops it)")
            sys.stdout.flush()

        serving.serve(run, model, found, port, browser, announce)


@with_options
def report(
    *,
    run: Run,
    table: Annotated[Path | None, typer.Option(help="Table of the training samples.", show_default="none")] = None,
    source: SampleOptions,
    held_out: ValidationOptions,
    shown: Shown,
) -> None:
    """Write report.html and figures/ of a run again.

    Sections that need data are kept from the last report, unless the data are given.

    Example: gppvae report runs/threes --table threes.csv --data threes.npy --validation-fraction 0.1
    """
    with one_line_errors():
        from gppvae.estimator import GPPVAE
        from gppvae.report.run import write_report

        model, train, test = GPPVAE.load(run), None, None
        if table is not None:
            if source.data is None and model.sample_names_ is None:
                raise ValueError("expected --table and --data together, got only one of them; give both or neither")
            train, test = fit_data(table, source, held_out, model.kernel, model.seed, model.sample_names_)
        elif source.data is not None:
            raise ValueError("expected --table and --data together, got only one of them; give both or neither")
        elif any(value is not None for value in vars(held_out).values()):
            raise ValueError(
                "expected --table and --data beside held-out rows, got neither; give the training data too"
            )
        page = write_report(run, model, train=train, test=test)
        answer(shown, {"report": page}, f"report: {page}")


@with_options
def kernels(*, shown: Shown) -> None:
    """List the kernels with their equations and arguments."""
    with one_line_errors():
        from gppvae.kernels.arguments import constructor_signature
        from gppvae.kernels.parse import KERNELS

        found = {
            name: {"call": f"{name}({_arguments(constructor_signature(cls))})", "text": inspect.getdoc(cls) or ""}
            for name, cls in KERNELS.items()
        }
        lines = [
            f"{one['call']}\n" + "".join(f"    {line}\n" for line in one["text"].splitlines()) for one in found.values()
        ]
        answer(shown, found, *lines, "Kernels are added (+), multiplied (*) and scaled: 0.5 * RBF(age) + Learned(id).")


def _arguments(signature: inspect.Signature) -> str:
    """Arguments in the syntax of a kernel expression, with their defaults."""
    words = []
    for name, one in signature.parameters.items():
        several = "..." if one.kind is one.VAR_POSITIONAL else ""
        words.append(name + several if one.default is one.empty else f"{name}={one.default}")
    return ", ".join(words)
