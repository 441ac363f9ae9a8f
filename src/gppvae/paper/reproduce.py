"""From the words of the command line to a finished experiment: run, results, page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gppvae.paper.comparison.methods import METHODS
from gppvae.paper.comparison.run import RESULTS, Plan, Say, run, with_earlier
from gppvae.paper.comparison.task import Task
from gppvae.paper.faces import data as face_data
from gppvae.paper.faces import recipes as face_recipes
from gppvae.paper.pages import faces as face_page
from gppvae.paper.pages import rotated_mnist as digit_page
from gppvae.paper.pages.comparison import Words, mse_rows, write_page
from gppvae.paper.rotated_mnist import data as digit_data
from gppvae.paper.rotated_mnist import recipes as digit_recipes
from gppvae.report.record import read_results, write_results

DIGIT_METHODS = tuple(name for name in METHODS if name not in ("default", "mirrored"))
QUICK_DIGIT_METHODS = ("joint", "dis", "livae")


class Asked(Protocol):
    """A request of the command line."""

    @property
    def name(self) -> str:
        """Of folder and results file."""

    def plan(self) -> Plan:
        """Methods, seeds and settings of the experiment."""

    def task(self, say: Say) -> Task:
        """Its data; `say` is told what was found."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for; see `gppvae reproduce rotated-mnist --help`."""

    split: str = "paper"
    network: str = "paper"
    methods: str = "all"
    seeds: int = 1
    first_seed: int = 0
    quick: bool = False
    source: str = "embedded"
    mnist: Path | None = None

    @property
    def name(self) -> str:
        words = ["rotated_mnist", self.split, self.network]
        words += ["mnist"] if self.split == "paper" and self.source == "mnist" else []
        return "_".join(words + (["quick"] if self.quick else []))

    def plan(self) -> Plan:
        setup = digit_recipes.setup(self.network, self.quick)
        recipe = digit_recipes.global_recipe(self.network, setup.global_epochs)
        methods = _named(self.methods, QUICK_DIGIT_METHODS if self.quick else DIGIT_METHODS)
        seeds = _seeds(self.first_seed, 1 if self.quick else self.seeds)
        return Plan(self.split, setup, recipe, methods, seeds, select=not self.quick)

    def task(self, say: Say = print) -> Task:
        return digit_data.task(digit_data.load_split(self.split, self.source, self.mnist))


@dataclass(frozen=True)
class FaceRequest:
    """What the command line asks for; see `gppvae reproduce faces --help`."""

    data: tuple[Path, ...] = ()
    split: str = "images"
    network: str | None = None
    methods: str = "all"
    seeds: int = 1
    first_seed: int = 0
    quick: bool = False
    people: int | None = None
    size: int | None = None
    progress: bool = True
    draw: int = face_data.SPLIT_SEED

    @property
    def name(self) -> str:
        words = ["faces", "faceplace" if self.data else "heads", self.split]
        words += [] if self.network in (None, "paper") else [str(self.network)]
        words += [] if self.draw == face_data.SPLIT_SEED else [f"draw{self.draw}"]
        return "_".join(words + (["quick"] if self.quick else []))

    def plan(self) -> Plan:
        face_data.check_split(self.split)
        setup = face_recipes.setup(self.network or ("wide" if self.quick else "paper"), self.quick)
        recipe = face_recipes.global_recipe(setup.global_epochs, photographs=bool(self.data))
        methods = _named(self.methods, face_recipes.QUICK_METHODS if self.quick else face_recipes.METHODS)
        seeds = _seeds(self.first_seed, 1 if self.quick else self.seeds)
        data = {"size": self._size} | ({} if self.data else {"people": self._people})
        data |= {} if self.draw == face_data.SPLIT_SEED else {"draw": self.draw}
        return Plan(self.split, setup, recipe, methods, seeds, select=not self.quick, data=data)

    def task(self, say: Say = print) -> Task:
        faces = face_data.load_faces(self.data, self._people, self._size, self.progress, say)
        return face_data.task(*faces, self.split, self.draw)

    @property
    def _people(self) -> int:
        return self.people or (face_recipes.QUICK_PEOPLE if self.quick else face_recipes.PEOPLE)

    @property
    def _size(self) -> int:
        return self.size or (face_recipes.QUICK_SIZE if self.quick else face_recipes.SIZE)


def reproduce_rotated_mnist(
    wanted: Request, out: Path | None, results: Path, progress: bool, say: Say
) -> tuple[Path, list[str]]:
    """Run the experiment, write its page and its results; see `reproduce`."""
    return reproduce(wanted, digit_page.WORDS, out, results, progress, say)


def reproduce_faces(
    wanted: FaceRequest, out: Path | None, results: Path, progress: bool, say: Say
) -> tuple[Path, list[str]]:
    """Run the experiment, write its page and its results; see `reproduce`."""
    return reproduce(wanted, face_page.WORDS, out, results, progress, say)


def reproduce(
    wanted: Asked, words: Words, out: Path | None, results: Path, progress: bool, say: Say
) -> tuple[Path, list[str]]:
    """Run what a request asks for, write its page and its results; the file keeps methods that were run before.

    Returns:
        The page, and the table of errors as lines of text.
    """
    plan, task = wanted.plan(), wanted.task(say)
    folder = out or Path("runs") / wanted.name
    say(f"{wanted.name}: {len(plan.methods)} methods, {len(plan.seeds)} seeds, in {folder}")
    content = run(folder, plan, task, progress, say)
    page = write_page(folder, task, words)
    kept, file = read_results(folder / RESULTS), results / f"{wanted.name}.json"
    kept = with_earlier(kept, read_results(file) if file.is_file() else None)
    del kept["about"]
    say(f"results: {write_results(file, kept)}")
    _, rows = mse_rows(content, words)
    return page, [f"{row[0]:24} {row[2]:>16}   paper {row[1]}" for row in rows]


def _named(methods: str, everything: tuple[str, ...]) -> tuple[str, ...]:
    """Methods of a list with commas, each once; all of them for "all"."""
    named = tuple(dict.fromkeys(word.strip() for word in methods.split(",") if word.strip()))
    return everything if named == ("all",) else named


def _seeds(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))
