"""The command `gppvae bench`: measure the defaults, and write the table of their page."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gppvae.paper.commands import Guard, command_group

RESULTS = Path("results/defaults.json")


def bench_app(guard: Guard) -> typer.Typer:
    """The sub-commands of `gppvae bench`.

    Args:
        guard: context that turns errors into one sentence; called with whether the command continues a stopped run.
    """
    app = command_group()

    @app.callback()
    def group() -> None:
        """Measure the package on public data, with nothing but a kernel."""

    @app.command("defaults")
    def defaults(
        task: list[str] = typer.Option([], help="Name of a task; repeat for several, all when not given."),
        seeds: str = typer.Option("0 1 2", help='Seeds of the fits, for example "0 1 2".'),
        data: Path | None = typer.Option(None, help="Folder of the data sets; $GPPVAE_DATA when not given."),
        out: Path = typer.Option(RESULTS, help="Results file; runs are added to those it holds."),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    ) -> None:
        """Fit each data set with a kernel and no other setting, beside the answers that need no model.

        Typed again, the command continues where it stopped. A run of another commit is replaced.
        """
        with guard(True):
            from gppvae.bench.run import run_defaults
            from gppvae.bench.tasks import chosen_tasks, data_folder

            run_defaults(chosen_tasks(task), _whole_numbers(seeds), data_folder(data), out, not quiet, _say)
            print(f"results: {out}")

    @app.command("table")
    def table(
        page: Path = typer.Argument(Path("docs/defaults.md"), help="Page with the comments that mark the table."),
        results: Path = typer.Option(RESULTS, help="Results file."),
    ) -> None:
        """Write the table of the results into the page."""
        with guard(False):
            from gppvae.bench.page import write

            write(page, results)
            print(f"page: {page}")

    return app


def _whole_numbers(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f'--seeds must be whole numbers from 0, such as "0 1 2", got {text!r}')
    return list(dict.fromkeys(map(int, words)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
