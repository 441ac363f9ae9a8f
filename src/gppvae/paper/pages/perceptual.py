"""The comparison of a plain and a perceptual loss as a page, a figure and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.estimator import GPPVAE
from gppvae.paper import perceptual as experiment
from gppvae.paper.pages import figures
from gppvae.paper.pages.accuracy_tables import ResultTable, mean_and_spread
from gppvae.paper.provenance import told, why_stale
from gppvae.report.record import read_results

SHOWN = 10


def reproduce_perceptual(
    quick: bool, out: Path | None, results: Path, progress: bool, mnist: Path | None = None
) -> tuple[Path, list[str]]:
    """Run the experiment, write its page and figure; the page's path and lines to print."""
    name = "perceptual_quick" if quick else "perceptual"
    recipe = experiment.QUICK if quick else experiment.Recipe()
    folder = out or Path("runs") / name
    summary = experiment.run(folder, results, recipe, name, progress, mnist)
    page = figures.FigurePage("A perceptual loss", "Rotated threes at a held-out angle")
    page.section("Error and sharpness", f"{summary['data']['test']} test images, {len(recipe.seeds)} seeds.")
    page.table(*compared(summary), "Sharpness is that of predictions as a share of the true images'.")
    page.section("Predictions")
    montage = _montage(folder, recipe)
    figures.save(montage, folder / "figures" / "predictions")
    page.figure(montage, "Test digits and both predictions, first seed.", "true and predicted digits")
    page.section("Choice of the weight", f"At {recipe.inner_angle:g} degrees, held out for the purpose.")
    page.table(*tried(summary), f"Chosen: {summary['weight']:g}.")
    columns, rows = compared(summary)
    lines = [", ".join(f"{name} {cell}" for name, cell in zip(columns, row, strict=True)) for row in rows]
    return page.write(folder / "report.html"), lines


def _montage(folder: Path, recipe: experiment.Recipe) -> figures.Figure:
    test = experiment.digits_of(recipe).test
    few = np.linspace(0, len(test.table) - 1, min(SHOWN, len(test.table))).astype(int)
    predicted = {
        method: GPPVAE.load(folder / experiment.folder_of(method, recipe.seeds[0])).predict(test.table.iloc[few]).mean
        for method in (experiment.PLAIN, experiment.FEATURES)
    }
    return figures.prediction_montage(test.images[few], predicted)


def compared(summary: Mapping[str, Any]) -> ResultTable:
    """Both losses on the test images."""
    columns = ["loss", "MSE", "gradient energy", "variance of the Laplacian", "MSE of features", "CPU seconds of a fit"]
    rows = []
    for method, found in summary["methods"].items():
        cells = [
            mean_and_spread(found["mse"], 4),
            mean_and_spread(found["gradient_energy"], 2),
            mean_and_spread(found["laplacian_variance"], 2),
        ]
        rows.append([method, *cells, mean_and_spread(found["feature_mse"], 4), f"{found['cpu_seconds']['mean']:.0f}"])
    return columns, rows


def tried(summary: Mapping[str, Any]) -> ResultTable:
    """Weights of the features at the inner angle."""
    columns = ["weight of the features", "MSE", "gradient energy", "variance of the Laplacian", "MSE of features"]
    rows = []
    for row in summary["selection"]:
        shares = [f"{row[name]:.2f}" for name in ("gradient_energy", "laplacian_variance")]
        rows.append([f"{row['weight']:g}", f"{row['mse']:.4f}", *shares, f"{row['feature_mse']:.4f}"])
    return columns, rows


def perceptual(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Both losses on the test images, from the results."""
    content = _shown(results)
    return compared(content) if content else ([], [])


def perceptual_choice(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Weights that were tried, from the results."""
    content = _shown(results)
    return tried(content) if content else ([], [])


def perceptual_refused(results: Path, options: Mapping[str, str]) -> str:
    """Why the comparison is not shown, if it is not."""
    path = results / "perceptual.json"
    reason = _stale(read_results(path)) if path.is_file() else None
    return told({path.name: reason} if reason else {}, "gppvae reproduce perceptual")


def _stale(content: Mapping[str, Any]) -> str | None:
    return why_stale(content.get("trained"), content.get("recipe"), experiment.Recipe().facts())


def _shown(results: Path) -> dict[str, Any] | None:
    path = results / "perceptual.json"
    content = read_results(path) if path.is_file() else None
    return None if content is None or _stale(content) else content
