"""The demo: rotated threes from the package, one angle held out, in about two minutes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.rotated_digits import RotatedDigits, small_split
from gppvae.estimator import GPPVAE
from gppvae.estimator.simple_answers import copy_nearest_view, mean_image, mean_of_nearest_view
from gppvae.inference.phase import Phase
from gppvae.report.run import write_report
from gppvae.training.checkpoint import write_json
from gppvae.training.folder import RunFolder
from gppvae.training.threads import one_thread

RESULT = "demo.json"
OURS = "GPPVAE"


@dataclass(frozen=True)
class DemoRecipe:
    """Size of the demo and settings of its model, all explicit, so that new defaults do not change the demo.

    Attributes:
        n_digits: threes, of which nine in ten are trained on.  n_angles: evenly spaced.
        held_out_angle: in degrees, for all digits.  kernel, settings, phases: of the GPPVAE.
    """

    n_digits: int = 200
    n_angles: int = 16
    held_out_angle: float = 157.5
    kernel: str = "Learned(digit, 16) * Periodic(angle, 360)"
    settings: dict[str, Any] = field(
        default_factory=lambda: {"latent_dim": 16, "network": "conv", "pixel_var": 0.01, "batch_size": 64}
    )
    phases: tuple[Phase, ...] = (
        Phase("global", "global", 110, dict.fromkeys(("prior", "noise", "weights"), 1e-2) | {"decoder": 2e-3}, "cosine",
              average=0.999),
        Phase("encoder", "distill", 20, {"encoder": 2e-3}, "cosine"),
    )  # fmt: skip


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        model: fitted.  digits: the data.  mse: mean squared error at the held-out angle, by method.
        page: the report.
    """

    model: GPPVAE
    digits: RotatedDigits
    mse: dict[str, float]
    page: Path


def run_demo(
    out: str | os.PathLike[str], seed: int = 0, recipe: DemoRecipe | None = None, progress: bool = True
) -> DemoResult:
    """Train, compare with simple answers, write the report; an interrupted demo is continued.

    Args:
        out: folder of the run; an earlier demo in it is replaced at the end.
        seed: of the digits and of training.
        recipe: size and settings; the default ones when None.  progress: show progress bars.
    """
    recipe = recipe or DemoRecipe()
    with demo_folder(out, seed, recipe) as folder:
        digits = small_split(recipe.n_digits, recipe.n_angles, seed, recipe.held_out_angle)
        model = _fitted(folder, digits, seed, recipe, progress)
        guesses = predictions(model, digits)
        mse = {name: _mse(guess, digits.test.images) for name, guess in guesses.items()}
        facts = {"seed": seed, "recipe": asdict(recipe), "mse": mse, "fit_seconds": model.fit_seconds_}
        write_json(folder / RESULT, facts)
        page = write_report(
            folder,
            model,
            train=(digits.train.images, digits.train.table),
            test=(digits.test.images, digits.test.table),
            scores=mse,
            others={name: guess for name, guess in guesses.items() if name != OURS},
            title="Rotated threes",
            about=f"Threes at {len(digits.angles)} angles, predicted at {digits.held_out_angle:g} degrees, "
            "an angle that was held out.",
        )
    return DemoResult(model, digits, mse, Path(out) / page.name)


def _fitted(folder: Path, digits: RotatedDigits, seed: int, recipe: DemoRecipe, progress: bool) -> GPPVAE:
    """The fitted model; loaded from the run folder if the demo was interrupted after the fit."""
    if RunFolder(folder).finished():
        return GPPVAE.load(folder)
    model = GPPVAE(recipe.kernel, seed=seed, phases=list(recipe.phases), **recipe.settings)
    with one_thread():
        model.fit(digits.train.images, digits.train.table, out=folder, progress=progress, checkpoint_seconds=10.0)
    return model


def predictions(model: GPPVAE, digits: RotatedDigits) -> dict[str, np.ndarray]:
    """Predictions at the test rows by method, each (n, 28, 28), those of the model first."""
    images, table, wanted = digits.train.images, digits.train.table, digits.test.table
    return {
        OURS: model.predict(wanted).mean,
        "copy of the nearest view": copy_nearest_view(images, table, wanted, "digit", "angle", 360.0),
        "mean image": mean_image(images, len(wanted)),
        "mean image of the nearest views": mean_of_nearest_view(images, table, wanted, "angle", 360.0),
    }


@contextlib.contextmanager
def demo_folder(out: str | os.PathLike[str], seed: int, recipe: DemoRecipe) -> Iterator[Path]:
    """A working folder that becomes `out` when the block succeeds.

    After an interruption, a demo with the same seed and recipe continues in it. An earlier demo in `out` is replaced
    only at the end. Any other folder is left alone, with an error.
    """
    target = Path(out)
    if target.exists() and not (target / RESULT).is_file() and not _is_empty_folder(target):
        raise ValueError(
            f"expected no folder or an earlier demo at {target}, found something else; choose another --out"
        )
    settings = json.dumps([asdict(recipe), seed], sort_keys=True)
    key = hashlib.sha256(settings.encode()).hexdigest()[:8]
    work = target.with_name(f".{target.name}.{key}.part")
    RunFolder(work).check_writable()
    yield work
    if target.exists():
        shutil.rmtree(target)
    os.replace(work, target)
    for unfinished in target.parent.glob(f".{target.name}.????????.part"):
        shutil.rmtree(unfinished)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _mse(guess: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean(np.square(guess.astype(np.float64) - truth.astype(np.float64))))
