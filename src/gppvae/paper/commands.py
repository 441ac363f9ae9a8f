"""The command `gppvae reproduce`: run an experiment of the paper and write its page."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import typer

Guard = Callable[[bool], contextlib.AbstractContextManager[None]]


def command_group() -> typer.Typer:
    """An empty group of commands that is loaded when it is asked for; errors are its guard's matter."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def reproduce_app(guard: Guard) -> typer.Typer:
    """The sub-commands of `gppvae reproduce`.

    Args:
        guard: context that turns errors into one sentence; called with whether the command continues a stopped run.
    """
    app = command_group()

    @app.callback()
    def group() -> None:
        """Repeat an experiment of the paper: its numbers and its figures."""

    @app.command("rotated-mnist")
    def rotated_mnist(
        split: str = typer.Option("paper", help="paper: drawn as the paper says. published: that of later papers."),
        network: str = typer.Option("paper", help="paper (8 channels) or wide."),
        methods: str = typer.Option("all", help="all, or names with commas, for example joint,dis,cvae."),
        seeds: int = typer.Option(1, min=1, help="Number of seeds."),
        first_seed: int = typer.Option(0, min=0, help="The first seed; two commands can share a folder."),
        quick: bool = typer.Option(False, "--quick", help="One seed of joint, dis and LIVAE, trained for less."),
        source: str = typer.Option("embedded", help="Threes of the paper's split: embedded (no download) or mnist."),
        mnist: Path | None = typer.Option(None, help="Folder of the MNIST files."),
        out: Path | None = typer.Option(None, help="Folder of the experiment; runs/rotated_mnist_... by default."),
        results: Path = typer.Option(Path("results"), help="Folder that gets the numbers as JSON."),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    ) -> None:
        """Handwritten threes at 16 angles, predicted at one that was held out (Figures 2, S3 and S4).

        Run again, the command continues where it stopped. One seed of everything takes about half an hour on one
        core, --quick three.
        """
        with guard(True):
            from gppvae.paper.reproduce import Request, reproduce_rotated_mnist

            wanted = Request(split, network, methods, seeds, first_seed, quick, source, mnist)
            page, lines = reproduce_rotated_mnist(wanted, out, results, not quiet, _say)
            print("\n".join(lines))
            print(f"report: {page}")

    @app.command("faces")
    def faces(
        data: list[Path] = typer.Option(
            [], help="Unpacked Face-Place folder, or several; generated heads when not given."
        ),
        split: str = typer.Option(
            "images", help="images: the paper's. people: test people are not in the training set."
        ),
        network: str | None = typer.Option(None, help="paper, or wide, which learns faster (the default of --quick)."),
        draw: int = typer.Option(1, min=0, help="Seed of the split: other images are held out with another."),
        methods: str = typer.Option("all", help="all, or names with commas, for example joint,global,cvae."),
        seeds: int = typer.Option(1, min=1, help="Number of seeds."),
        first_seed: int = typer.Option(0, min=0, help="The first seed; two commands can share a folder."),
        quick: bool = typer.Option(False, "--quick", help="One seed, fewer and smaller images, trained for less."),
        people: int | None = typer.Option(None, min=3, help="Number of people, for generated heads."),
        size: int | None = typer.Option(None, min=8, help="Pixels per side; the paper's 128 when not given."),
        out: Path | None = typer.Option(None, help="Folder of the experiment; runs/faces_... by default."),
        results: Path = typer.Option(Path("results"), help="Folder that gets the numbers as JSON."),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    ) -> None:
        """People in nine poses, predicted in poses in which they were not seen (Figures 3, S3 and S5).

        Run again, the command continues where it stopped. The photographs (--data) are not part of the package; they
        come from tarrlab.org, for non-commercial research.
        """
        with guard(True):
            from gppvae.paper.reproduce import FaceRequest, reproduce_faces

            wanted = FaceRequest(
                tuple(data), split, network, methods, seeds, first_seed, quick, people, size, not quiet, draw
            )
            page, lines = reproduce_faces(wanted, out, results, not quiet, _say)
            print("\n".join(lines))
            print(f"report: {page}")

    @app.command("accuracy")
    def accuracy(
        network: str = typer.Option(
            "image", help="image, paper (the peers' 8 channels, 48 latents), or five in one model: image-5, paper-5."
        ),
        seeds: int = typer.Option(1, min=1, help="Number of seeds."),
        first_seed: int = typer.Option(0, min=0, help="The first seed; two commands can share a folder."),
        mnist: Path | None = typer.Option(None, help="Folder of the MNIST files."),
        out: Path = typer.Option(Path("runs/accuracy"), help="Folder of the experiment."),
        results: Path = typer.Option(Path("results"), help="Folder that gets the numbers as JSON."),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    ) -> None:
        """The best model on the published split of rotated MNIST: error, coverage of intervals, new digits.

        Run again, the command continues where it stopped. A seed takes about five minutes on one core, and
        five times as long with five networks in one model.
        """
        with guard(True):
            from gppvae.paper.pages.accuracy import reproduce_accuracy

            chosen = list(range(first_seed, first_seed + seeds))
            page, lines = reproduce_accuracy(network, chosen, out, results, mnist, not quiet)
            print("\n".join(lines))
            print(f"report: {page}")

    @app.command("ablation")
    def ablation(
        study: str = typer.Argument("best", help="best (the recipe of accuracy) or joint (that of rotated-mnist)."),
        seed: int = typer.Option(0, min=0, help="Seed of all fits."),
        mnist: Path | None = typer.Option(None, help="Folder of the MNIST files."),
        out: Path = typer.Option(Path("runs/ablation"), help="Folder of the experiment."),
        results: Path = typer.Option(Path("results"), help="Folder that gets the numbers as JSON."),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    ) -> None:
        """What each part of a recipe contributes: the error without it, at an angle held out for the purpose.

        Run again, the command continues where it stopped. A variant takes about two minutes on one core.
        """
        with guard(True):
            from gppvae.paper.ablation import run

            for name, row in run(study, out, results, seed, mnist, not quiet)["variants"].items():
                print(f"{name:>36}  inner {row['inner']:.5f}  train {row['train']:.5f}")

    @app.command("perceptual")
    def perceptual(
        quick: bool = typer.Option(False, "--quick", help="Fewer digits, trained for less, one seed."),
        mnist: Path | None = typer.Option(None, help="Folder of the MNIST files, for the classifier."),
        out: Path | None = typer.Option(None, help="Folder of the experiment; runs/perceptual by default."),
        results: Path = typer.Option(Path("results"), help="Folder that gets the numbers as JSON."),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bars."),
    ) -> None:
        """A perceptual loss beside the plain one on rotated threes: error and sharpness (Figure S6).

        Run again, the command continues where it stopped. It takes about four minutes on one core.
        """
        with guard(True):
            from gppvae.paper.pages.perceptual import reproduce_perceptual

            page, lines = reproduce_perceptual(quick, out, results, not quiet, mnist)
            print("\n".join(lines))
            print(f"report: {page}")

    return app


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
