"""Pixels alone against pixels and features of a digit classifier: error and sharpness at an angle never seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gppvae.data.image_set import ImageSet
from gppvae.data.rotated_digits import RotatedDigits, small_split
from gppvae.estimator import GPPVAE
from gppvae.inference.phase import Phase
from gppvae.likelihoods import Gaussian, Likelihood, Perceptual
from gppvae.likelihoods.features import FrozenFeatures
from gppvae.paper.digit_classifier import DigitClassifier, train_classifier
from gppvae.paper.evaluation import mse_per_sample
from gppvae.paper.mnist import first_of_each
from gppvae.paper.provenance import fit_record, over_seeds
from gppvae.paper.statistics import mean_and_range
from gppvae.report.record import read_results, write_results
from gppvae.training.checkpoint import read_tensors, write_tensors
from gppvae.training.folder import MODEL
from gppvae.training.threads import one_thread

PLAIN, FEATURES = "pixels", "pixels and features"
MEASURES = ("mse", "gradient_energy", "laplacian_variance", "feature_mse")


@dataclass(frozen=True)
class Recipe:
    """Every number that decides the comparison.

    Attributes:
        n_digits, n_angles: of the rotated threes.  held_out_angle: of the test.
        inner_angle: taken out of training as well while the weight is chosen, which is that of the least MSE there.
        kernel, settings, epochs, rates, weight_decay: of both models, trained by global inference.
        pixel_var: of both.  layers: of the classifier.  weights: of features that are tried, the same for all layers.
        seeds: of the models that are compared; the first one also chooses.
    """

    n_digits: int = 60
    n_angles: int = 16
    held_out_angle: float = 157.5
    inner_angle: float = 247.5
    kernel: str = "Learned(digit, 16) * Periodic(angle, 360, lengthscale=1.0, fixed=True)"
    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "latent_dim": 32,
            "network": "wide",
            "width": 16,
            "alpha": 0.0004,
            "batch_size": 64,
        }
    )
    epochs: int = 140
    rates: dict[str, float] = field(default_factory=lambda: {"decoder": 5e-3, "prior": 1e-2, "weights": 1e-2})
    weight_decay: float = 0.2
    pixel_var: float = 0.001
    layers: tuple[str, ...] = ("relu1", "relu2")
    weights: tuple[float, ...] = (100.0, 400.0)
    seeds: tuple[int, ...] = (0, 1, 2)

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self) | {name: list(getattr(self, name)) for name in ("layers", "weights", "seeds")}


QUICK = Recipe(n_digits=30, epochs=20, weights=(100.0,), seeds=(0,))


def run(
    out: Path,
    results: Path,
    recipe: Recipe | None = None,
    name: str = "perceptual",
    progress: bool = True,
    mnist: Path | None = None,
) -> dict[str, Any]:
    """Choose the weight of the features, compare on the test images, write results/<name>.json; returns its content.

    Args:
        out: folder of the experiment; what is finished in it is kept, what was stopped continues.
        results: folder of the JSON file.  recipe: the full one when None.  progress: show progress bars.
        mnist: folder of the MNIST files, on which the classifier is trained; see `gppvae.paper.mnist.find_mnist`.
    """
    recipe = recipe or Recipe()
    check_recipe(out, recipe)
    digits = digits_of(recipe)
    with one_thread():
        classifier, accuracy = classifier_in(out, mnist)
        fits = Fits(recipe, classifier, out, progress)
        tried = _tried_weights(fits, digits)
        weight = choose(tried)
        rows: list[dict[str, Any]] = [
            {"method": method, "seed": seed} | fits.result(folder_of(method, seed), w, seed, digits.train, digits.test)
            for method, w in ((PLAIN, 0.0), (FEATURES, weight))
            for seed in recipe.seeds
        ]
    summary = {
        "experiment": "perceptual",
        "data": {"name": digits.name, "train": len(digits.train.table), "test": len(digits.test.table)},
        "recipe": recipe.facts(),
        "classifier_accuracy": accuracy,
        "selection": [{name: value for name, value in row.items() if name != "fits"} for row in tried],
        "weight": weight,
        "methods": {method: _summary([row for row in rows if row["method"] == method]) for method in (PLAIN, FEATURES)},
        "trained": over_seeds([row.get("fits") for row in rows]),
        "per_seed": [{name: value for name, value in row.items() if name != "fits"} for row in rows],
    }
    write_results(results / f"{name}.json", summary)
    return summary


def check_recipe(out: Path, recipe: Recipe) -> None:
    """Note the recipe in the folder; ValueError when results of another one are there."""
    note, facts = out / "recipe.json", recipe.facts()
    if note.exists() and {name: value for name, value in read_results(note).items() if name != "about"} != facts:
        raise ValueError(f"{out} holds this experiment with other settings; choose another folder or remove it")
    if not note.exists():
        write_results(note, facts)


def digits_of(recipe: Recipe) -> RotatedDigits:
    """The data of the comparison."""
    return small_split(recipe.n_digits, recipe.n_angles, 0, recipe.held_out_angle)


def folder_of(method: str, seed: int) -> str:
    """Of a fit that is compared on the test images, inside the folder of the experiment."""
    return f"{method.replace(' ', '-')}-seed{seed}"


def classifier_in(out: Path, mnist: Path | None = None) -> tuple[DigitClassifier, float]:
    """The classifier that is kept in the folder, trained if there is none, and its accuracy."""
    file = out / "classifier.safetensors"
    if not file.exists():
        trained, accuracy = train_classifier(*first_of_each(500, mnist))
        out.mkdir(parents=True, exist_ok=True)
        write_tensors(file, trained.state_dict(), {"accuracy": accuracy})
    tensors, meta = read_tensors(file)
    classifier = DigitClassifier()
    classifier.load_state_dict(tensors)
    return classifier, float(meta["accuracy"])


def choose(tried: list[dict[str, float]]) -> float:
    """The weight of the least error, among those that are not 0."""
    return min((row for row in tried if row["weight"] > 0.0), key=lambda row: row["mse"])["weight"]


class Fits:
    """Models of one experiment, each in a folder of its own, where an interrupted one continues."""

    def __init__(self, recipe: Recipe, classifier: DigitClassifier, out: Path, progress: bool) -> None:
        self.recipe, self.classifier, self.out, self.progress = recipe, classifier, out, progress

    def result(self, name: str, weight: float, seed: int, train: ImageSet, asked: ImageSet) -> dict[str, Any]:
        """Errors at rows that were not trained on, of the model with this weight of features."""
        record = self.out / name / "result.json"
        if not record.exists():
            model = self._fitted(self.out / name, weight, seed, train)
            fit = fit_record(self.out / name)
            write_results(record, self._measures(model, asked) | {"cpu_seconds": fit["cpu_seconds"], "fits": [fit]})
        return {key: value for key, value in read_results(record).items() if key != "about"}

    def _fitted(self, folder: Path, weight: float, seed: int, train: ImageSet) -> GPPVAE:
        if (folder / MODEL).exists():
            return GPPVAE.load(folder)
        recipe = self.recipe
        phase = Phase(
            "global", "global", recipe.epochs, recipe.rates, "cosine", warmup=0.02, weight_decay=recipe.weight_decay
        )
        model = GPPVAE(recipe.kernel, likelihood=self._likelihood(weight), phases=[phase], seed=seed, **recipe.settings)
        return model.fit(train.images, train.table, out=folder, progress=self.progress)

    def _likelihood(self, weight: float) -> Likelihood:
        pixels = Gaussian(self.recipe.pixel_var)
        return (
            pixels if weight == 0.0 else Perceptual(self.classifier, dict.fromkeys(self.recipe.layers, weight), pixels)
        )

    def _measures(self, model: GPPVAE, asked: ImageSet) -> dict[str, float]:
        """MSE of pixels and of features; gradient energy and Laplacian variance as shares of the true images'."""
        truth, found = asked.images, model.predict(asked.table).mean
        features = FrozenFeatures(self.classifier, self.recipe.layers)
        pairs = zip(*(features(torch.from_numpy(images).unsqueeze(1)) for images in (truth, found)), strict=True)
        return {
            "mse": float(mse_per_sample(truth, found).mean()),
            "gradient_energy": gradient_energy(found) / gradient_energy(truth),
            "laplacian_variance": laplacian_variance(found) / laplacian_variance(truth),
            "feature_mse": float(np.mean([float((a - b).square().mean()) for a, b in pairs])),
        }


def _tried_weights(fits: Fits, digits: RotatedDigits) -> list[dict[str, float]]:
    """Errors at the inner angle, which is taken out of training, of every weight; no test image is looked at."""
    recipe, part = fits.recipe, digits.train
    inner = np.isclose(part.table["angle"].to_numpy(), recipe.inner_angle)
    train, asked = (ImageSet(part.images[at], part.table[at].reset_index(drop=True)) for at in (~inner, inner))
    seed = recipe.seeds[0]
    return [
        {"weight": weight} | fits.result(f"choice-weight{weight:g}", weight, seed, train, asked)
        for weight in (0.0, *recipe.weights)
    ]


def _summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {measure: mean_and_range([row[measure] for row in rows]) for measure in (*MEASURES, "cpu_seconds")}


def gradient_energy(images: np.ndarray) -> float:
    """Mean squared difference of neighbouring pixels, down plus across, of images (N, height, width)."""
    pixels = images.astype(np.float64)
    return float(np.square(np.diff(pixels, axis=1)).mean() + np.square(np.diff(pixels, axis=2)).mean())


def laplacian_variance(images: np.ndarray) -> float:
    """Variance over an image of its discrete Laplacian of four neighbours, averaged over (N, height, width)."""
    pixels = images.astype(np.float64)
    inside = pixels[:, 1:-1, 1:-1]
    around = pixels[:, 2:, 1:-1] + pixels[:, :-2, 1:-1] + pixels[:, 1:-1, 2:] + pixels[:, 1:-1, :-2]
    return float((around - 4.0 * inside).var(axis=(1, 2)).mean())
