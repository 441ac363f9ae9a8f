"""The accuracy experiment as a page: errors, calibration, new digits, one digit turning through any angle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.rotated_digits import RotatedDigits
from gppvae.estimator import GPPVAE
from gppvae.paper import accuracy
from gppvae.paper.pages import figures
from gppvae.paper.pages.figures import FigurePage, lines_by_k, turning_gif
from gppvae.paper.rotated_mnist.data import OBJECT, VIEW, load_split
from gppvae.report.page import Panel

TURNED, STEP_DEGREES = 8, 7.5


def reproduce_accuracy(
    network: str, seeds: list[int], out: Path, results: Path, mnist: Path | None, progress: bool
) -> tuple[Path, list[str]]:
    """Run the experiment, write its page, figures and an animation; the page's path and lines to print."""
    summary = accuracy.run(network, seeds, out, results, mnist, progress=progress)
    digits = load_split("published", mnist=mnist)
    folder = out / network
    model = GPPVAE.load(folder / f"seed{seeds[0]}")
    page = FigurePage(f"Rotated MNIST, {network} network", "Published split, global inference, last epoch")
    page.section("Error at the held-out angle")
    lines = _errors(page, summary)
    _predictions(page, model, digits, folder)
    _uncertainty(page, summary, folder)
    _new_objects(page, summary, folder)
    _turning(page, model, digits, folder)
    return page.write(folder / "report.html"), lines


def _errors(page: FigurePage, summary: dict[str, Any]) -> list[str]:
    mse, averaged = summary["mse"], summary["mse_averaged"]
    rows = [
        ["mean-decoded", f"{mse['mean']:.5f}", f"{mse['std']:.5f}"],
        ["averaged over 64 draws", f"{averaged['mean']:.5f}", f"{averaged['std']:.5f}"],
        ["average of the models of all seeds", f"{summary['mse_of_average']:.5f}", ""],
    ]
    page.table(
        ["prediction", "MSE", "standard deviation over seeds"], rows, f"270 test images, {len(summary['seeds'])} seeds"
    )
    return [f"{name}: MSE {value} {f'+- {spread}' if spread else ''}".rstrip() for name, value, spread in rows]


def _predictions(page: FigurePage, model: GPPVAE, digits: RotatedDigits, folder: Path) -> None:
    few = slice(0, 10)
    drawn = model.predict(digits.test.table[few], accuracy.N_DRAWS, include_noise=True)
    assert drawn.std is not None
    montage = figures.prediction_montage(digits.test.images[few], {"GPPVAE": drawn.mean}, std=drawn.std)
    figures.save(montage, folder / "figures" / "predictions")
    page.figure(
        montage, "Ten test digits at the held-out angle, and the predicted uncertainty.", "true and predicted digits"
    )


def _uncertainty(page: FigurePage, summary: dict[str, Any], folder: Path) -> None:
    page.section("Uncertainty", "Share of test pixels inside central intervals, over pixels that vary in training.")
    levels = [float(level.rstrip("%")) / 100.0 for level in summary["coverage"]]
    found = [entry["mean"] for entry in summary["coverage"].values()]
    chart = figures.calibration(levels, found)
    figures.save(chart, folder / "figures" / "calibration")
    page.figure(chart, f"NLL per pixel {summary['nll_per_pixel']['mean']:.3f} nats.", "coverage against level")


def _new_objects(page: FigurePage, summary: dict[str, Any], folder: Path) -> None:
    page.section("Digits never seen in training", "The 40 validation digits, from k random views each.")
    table = summary["new_objects"]
    names = {
        "mse": "GPPVAE",
        "copy_nearest_view": "copy of the nearest view",
        "mean_image_of_view": "mean image of the view",
    }
    series = {
        label: ([table[k][name]["mean"] for k in table], [table[k][name]["std"] for k in table])
        for name, label in names.items()
    }
    chart = lines_by_k([int(k) for k in table], series, "MSE on the other views")
    figures.save(chart, folder / "figures" / "new_objects")
    page.figure(chart, "Error on all views that were not given; bars are over seeds.", "error against views given")


def _turning(page: FigurePage, model: GPPVAE, digits: RotatedDigits, folder: Path) -> None:
    """Digits through angles in small steps, most of which are in no data set."""
    angles = np.arange(0.0, 360.0, STEP_DEGREES)
    ids = digits.test.table[OBJECT].to_numpy()[:TURNED]
    rows = {OBJECT: np.repeat(ids, len(angles)), VIEW: np.tile(angles, len(ids))}
    drawn = model.predict(rows, 16)
    assert drawn.std is not None
    shape = (len(ids), len(angles), *digits.test.images.shape[1:])
    frames, spread = drawn.mean.reshape(shape), drawn.std.reshape(shape)
    page.section("Any angle", "Every 7.5 degrees; the model saw multiples of 22.5, and never 157.5.")
    page.turntable(
        {"predicted": frames, "spread of draws": Panel(spread, 0.0, float(spread.max()), "magma")},
        [f"{angle:g} degrees" for angle in angles],
        "Turn the digit with the slider or the arrow keys.",
        [f"digit {number}" for number in ids],
        held_out=np.isclose(angles, digits.held_out_angle),
    )
    turning_gif(frames[0], folder / "figures" / "turning.gif")
