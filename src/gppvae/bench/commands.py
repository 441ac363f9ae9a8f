"""The command `gppvae bench`: measure the package, and write the tables of its pages."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gppvae.paper.commands import Guard, command_group

RESULTS, FIELD = Path("results/defaults.json"), Path("results/field.json")
TASK = typer.Option([], help="Name of a task; repeat for several, all when not given.")
DATA = typer.Option(None, help="Folder of the data sets; $GPPVAE_DATA when not given.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress bars.")
OUT = "Results file; runs are added to those it holds."


def bench_app(guard: Guard) -> typer.Typer:
    """The sub-commands of `gppvae bench`.

    Args:
        guard: context that turns errors into one sentence; called with whether the command continues a stopped run.
    """
    app = command_group()

    @app.callback()
    def group() -> None:
        """Measure the package on public data."""

    @app.command("defaults")
    def defaults(
        task: list[str] = TASK,
        seeds: str = typer.Option("0 1 2", help='Seeds of the fits, for example "0 1 2".'),
        data: Path | None = DATA,
        out: Path = typer.Option(RESULTS, help=OUT),
        quiet: bool = QUIET,
    ) -> None:
        """Fit each data set with a kernel and no other setting, beside the answers that need no model.

        Typed again, the command continues where it stopped. A run of another commit is replaced.
        """
        with guard(True):
            _measure("defaults", task, seeds, data, out, not quiet)

    @app.command("field")
    def field(
        task: list[str] = TASK,
        seeds: str = typer.Option("0", help='Seeds of the fits, for example "0 1 2".'),
        data: Path | None = DATA,
        out: Path = typer.Option(FIELD, help=OUT),
        quiet: bool = QUIET,
    ) -> None:
        """Benchmarks of other systems: longitudinal images, time series with holes, soil, counts in tissue.

        With the extra `bench`, the GP-VAE of PyPOTS is run on the same time series. A task takes five to fifteen
        minutes on one core. Typed again, the command continues where it stopped. A run of another commit is replaced.
        """
        with guard(True):
            _measure("field", task, seeds, data, out, not quiet)

    @app.command("table")
    def table(
        page: Path | None = typer.Argument(None, help="Page with the comments that mark the table."),
        results: Path = typer.Option(RESULTS, help="Results file, of either command."),
    ) -> None:
        """Write the table of the results into the page, docs/defaults.md or docs/field.md if none is given."""
        with guard(False):
            from gppvae.bench.page import write

            print(f"page: {write(page, results)}")

    return app


def _measure(suite: str, task: list[str], seeds: str, data: Path | None, out: Path, progress: bool) -> None:
    from gppvae.bench.run import run_suite
    from gppvae.bench.tasks import chosen_tasks, data_folder

    run_suite(suite, chosen_tasks(suite, task), _whole_numbers(seeds), data_folder(data), out, progress, _say)
    print(f"results: {out}")


def _whole_numbers(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f'--seeds must be whole numbers from 0, such as "0 1 2", got {text!r}')
    return list(dict.fromkeys(map(int, words)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
