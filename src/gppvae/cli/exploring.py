"""The command that opens the live page: explore."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gppvae.cli.errors import one_sentence
from gppvae.cli.inputs import fit_data
from gppvae.cli.options import OUTPUT, Run, SampleOptions, Shown, ValidationOptions, option_in, with_options
from gppvae.cli.output import answer

TABLE_HELP = "Training table; without samples it only shows which rows were measured."


@with_options
def explore(
    *,
    run: Run,
    table: Annotated[Path | None, typer.Option(help=TABLE_HELP, show_default="none")] = None,
    source: SampleOptions,
    held_out: ValidationOptions,
    port: Annotated[int, option_in(OUTPUT, min=0, max=65535, help="Port on this machine; 0 for a free one.")] = 0,
    browser: Annotated[bool, option_in(OUTPUT, "--browser/--no-browser", help="Open the page in the browser.")] = True,
    shown: Shown,
) -> None:
    """Look at a fitted model on a live page: pick a cell, drag a slider, switch terms off, drop in a new object.

    The page is served on this machine only, at an address with a random token. Ctrl-C stops it; nothing is written.

    Example: gppvae explore runs/faces --table faces.csv --data photos/
    """
    with one_sentence():
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
            alone = not (source.data or source.samples or model.sample_names_ or table.suffix == ".h5ad")
            train, held = fit_data(table, source, held_out, model.kernel, model.seed, model.sample_names_, alone)
            found = Source(make_part(model, train[1], train[0]))
            if held is not None:
                found.held = make_part(model, held[1], held[0])
            found.notes += other_data(run, found.train)

        def tell(address: str) -> None:
            answer(shown, {"address": address}, f"live page: {address}  (Ctrl-C stops it)")
            sys.stdout.flush()

        serving.serve(run, model, found, port, browser, tell)
