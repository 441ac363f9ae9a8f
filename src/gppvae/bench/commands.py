"""The command `gppvae bench`: measure the package, and write the tables of its pages."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gppvae.paper.commands import Guard, command_group

RESULTS = Path("results/defaults.json")
SUITES = {  # usual seeds, and what is measured
    "defaults": (
        "0 1 2",
        "Fit each data set with a kernel and no other setting, beside the answers that need no model.",
    ),
    "field": (
        "0",
        "Benchmarks of other systems: longitudinal images, time series with holes, soil, counts in tissue.\n\n"
        "With the extra `bench`, the GP-VAE of PyPOTS is run on the same time series. A task takes five to forty "
        "minutes on one core.",
    ),
    "inference": (
        "0",
        "Fit the same data by every inference with no other setting, beside the inference that is chosen by default.",
    ),
}
AGAIN = "Run again, the command continues where it stopped. A run of another commit is replaced."
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

    for suite, (seeds, words) in SUITES.items():
        _add_suite(app, guard, suite, seeds, f"{words}\n\n{AGAIN}")

    @app.command("table")
    def table(
        page: Path | None = typer.Argument(None, help="Page with the comments that mark the table."),
        results: Path = typer.Option(RESULTS, help="Results file of one of the commands."),
    ) -> None:
        """Write the table of the results into the page, by default the one in docs/ that has their name."""
        with guard(False):
            from gppvae.bench.page import write

            print(f"page: {write(page, results)}")

    return app


def _add_suite(app: typer.Typer, guard: Guard, suite: str, usual_seeds: str, words: str) -> None:
    """The command that measures a suite of tasks; `words` is its help."""

    @app.command(suite, help=words)
    def measure(
        task: list[str] = TASK,
        seeds: str = typer.Option(usual_seeds, help='Seeds of the fits, for example "0 1 2".'),
        data: Path | None = DATA,
        out: Path = typer.Option(Path(f"results/{suite}.json"), help=OUT),
        quiet: bool = QUIET,
    ) -> None:
        with guard(True):
            _measure(suite, task, seeds, data, out, not quiet)


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
