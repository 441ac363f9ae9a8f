"""The report of a run: a run folder and, where given, its data -> figures and one self-contained page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import norm

from gppvae.data.arrays import Samples, from_input_layout
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE, Prediction
from gppvae.kernels import FreeForm, IdLeaf, InducingLeaf, Leaf, Learned
from gppvae.report import figures
from gppvae.report.describe import (
    REPORT,
    column_rows,
    kernel_rows,
    kernel_text,
    phase_rows,
    run_facts,
    settings_rows,
)
from gppvae.report.errors import count_scores, error_words
from gppvae.report.images import is_image, shade_range, to_pictures
from gppvae.report.page import Page, Panel
from gppvae.report.turning import Part, find_turn, measured

FIGURES = "figures"
MAX_SCORED, MAX_SHOWN, MAX_LEVELS = 2000, 8, 400
DRAWS = 32
LEVELS = np.linspace(0.1, 0.95, 18)


def write_report(
    folder: str | os.PathLike[str],
    model: GPPVAE | None = None,
    *,
    train: Part | None = None,
    test: Part | None = None,
    scores: Mapping[str, float] | None = None,
    others: Mapping[str, np.ndarray] | None = None,
    title: str = "GPPVAE run",
    about: str | None = None,
) -> Path:
    """Write report.html and figures/ into the run folder.

    Args:
        folder: holds the run.  model: fitted; loaded from the folder when None.
        train, test: (samples, table) of training and of held-out data; sections that need them are left out.
        scores: mean squared error at the test rows by method, the model's first; computed when None.
        others: predictions of other methods at the test rows to compare with, (n, *shape) or (n, h, w) each.
        title, about: of the page.
    """
    report = RunReport(Path(folder), model or GPPVAE.load(folder), train, test, title, about)
    report.results(scores)
    report.predictions(others or {})
    report.turntable()
    report.covariances()
    report.training()
    report.facts()
    return report.page.write(Path(folder) / REPORT)


class RunReport:
    """The sections of the page; each adds itself only where the model and the data allow it."""

    def __init__(
        self, folder: Path, model: GPPVAE, train: Part | None, test: Part | None, title: str, about: str | None
    ) -> None:
        self.folder, self.model, self.train, self.test = folder, model, train, test
        self.page = Page(title, about or f"{kernel_text(model)}, {model.prior_.n_latents} latent dimensions")
        self.images = is_image(model.shape_)
        self.rows = np.array([], dtype=np.int64) if test is None else spread(len(Table(test[1])), MAX_SCORED)

    # -- sections

    def results(self, scores: Mapping[str, float] | None) -> None:
        """Mean squared errors at the test rows."""
        if self.test is None:
            return
        scores = scores or self._scores()
        head, words = error_words(self.model)
        self.page.section("Results", f"{words} at {len(self.rows)} rows that were not trained on.")
        rows = [(name, value) for name, value in scores.items()]
        self.page.table(["method", head], rows, "Lower is better.", highlight_row=0)

    def predictions(self, others: Mapping[str, np.ndarray]) -> None:
        """Truth and prediction with its uncertainty, and the calibration of that uncertainty."""
        part = self.test or self.train
        if part is None:
            return
        what = "that were not trained on" if self.test else "of the training data"
        self.page.section("Predictions", f"Samples predicted from rows {what}, never from the samples themselves.")
        shown = spread(len(Table(part[1])), MAX_SHOWN)
        truth, mean, std = self._compared(part, shown, include_noise=not self.images)
        if self.images:
            extra = {name: self._as_samples(array[shown]) for name, array in others.items()}
            figure = self._montage(truth, {"predicted": mean} | extra, std)
            text = f"Rows top to bottom: truth, predictions, standard deviation over {DRAWS} draws of the latents."
        else:
            figure = vector_figure(truth, mean, std)
            text = "Truth (points) and prediction (line) with two standard deviations, one panel per row."
        self._figure(figure, "predictions", text, "true and predicted samples")
        if self.test is not None:
            self._calibration(spread(len(self.rows), 256))

    def turntable(self) -> None:
        """Objects that turn through all views."""
        turn = find_turn(self.model, self.test) if self.images else None
        if turn is None:
            return
        mean, std = channels_first(self.model, self.model.predict(turn.rows(), n_samples=DRAWS))
        size = (len(turn.objects), len(turn.views), *self.model.shape_)
        frames, held = measured(self.model, turn, self.train, self.test)
        low, high = shade_range(np.concatenate([mean.ravel(), frames[np.isfinite(frames)]]))
        spreads = std.reshape(size).mean(axis=2)
        panels: dict[str, Any] = {"measured": Panel(to_pictures(frames), low, high)} if self.train or self.test else {}
        panels["predicted"] = Panel(to_pictures(mean.reshape(size)), low, high)
        panels["uncertainty"] = Panel(spreads, 0.0, float(spreads.max()) or 1.0, "magma")
        self.page.section(
            "Every view of every object",
            f"The model predicts every {turn.view_column} of every {turn.object_column}, measured or not.",
        )
        names = [f"{turn.object_column} {name}" for name in turn.objects]
        text = f"Measured, predicted and its standard deviation (brightest: {spreads.max():.2g})."
        self.page.turntable(panels, turn.labels(), text, names, held if held.any() else None, ms=120)

    def covariances(self) -> None:
        """What the kernel learned about ids and numbers."""
        found = [(leaf, *self._covariance(leaf)) for leaf in self.model.prior_.leaves() if _has_covariance(leaf)]
        self.page.section("What the kernel learned")
        self.page.table(["part of the kernel", "learned"], kernel_rows(self.model), "Parts of the kernel.")
        ids = [entry for entry in found if isinstance(entry[0], Learned)]
        views = [entry for entry in found if not isinstance(entry[0], Learned)]
        if len(ids) == len(views) == 1:
            figure = figures.covariance_pair(ids[0][1], views[0][1], views[0][2])
            text = f"Learned covariance of {ids[0][0].text()} (left) and {views[0][0].text()} (right)."
            self._figure(figure, "covariances", text, "heat maps of the covariance between objects and between views")
            return
        for number, (leaf, matrix, labels) in enumerate(found):
            order = figures.cluster_order(matrix) if isinstance(leaf, Learned) else None
            figure = figures.covariance(matrix, labels, leaf.text(), order)
            self._figure(figure, f"covariance_{number}", f"Learned covariance of {leaf.text()}.", "heat map")

    def training(self) -> None:
        """Loss terms over epochs."""
        rows = curve_rows(self.model.history_, self.model.resolved_["phases"])
        if not rows:
            return
        self.page.section("Training", "Terms of the loss per sample in nats, by epoch; colours mark the phases.")
        self._figure(figures.loss_curves(rows), "loss", "The loss and its terms.", "loss curves over epochs")

    def facts(self) -> None:
        """Columns, settings and what makes the run repeatable."""
        self.page.section("Facts")
        self.page.table(["column", "in training"], column_rows(self.model), "Columns the kernel reads.")
        self.page.facts(run_facts(self.folder, self.model) | {"shape of a sample": self.model.shape_})
        self.page.table(["phase", "how it was trained"], phase_rows(self.model), "Phases of the training.")
        self.page.table(["setting", "value"], settings_rows(self.model), "Settings that were trained with.")

    # -- pieces

    def _figure(self, figure: Figure, name: str, caption: str, alt: str) -> None:
        figures.save(figure, self.folder / FIGURES / name)
        self.page.figure(figure, caption, alt)

    def _read(self, part: Part, index: np.ndarray) -> np.ndarray:
        """Samples (n, *shape) with NaN where nothing was observed."""
        samples = Samples(part[0], self.model.channels, self.model.scale, self.model.missing)
        y, mask = samples.read(torch.from_numpy(index))
        return y.numpy() if mask is None else np.where(mask.numpy(), y.numpy(), np.nan)

    def _compared(
        self, part: Part, index: np.ndarray, include_noise: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        prediction = self.model.predict(Table(part[1]).take(index), n_samples=DRAWS, include_noise=include_noise)
        return self._read(part, index), *channels_first(self.model, prediction)

    def _as_samples(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).reshape(len(array), *self.model.shape_)

    def _scores(self) -> dict[str, float]:
        assert self.test is not None
        counted = count_scores(self.model, self.test, self.rows, "GPPVAE")
        if counted is not None:
            return counted
        truth = self._read(self.test, self.rows)
        guess = from_input_layout(self.model.predict(Table(self.test[1]).take(self.rows)).mean, self.model.layout_)
        scores = {"GPPVAE": float(np.nanmean(np.square(truth - guess)))}
        if self.train is not None:
            mean = np.nanmean(self._read(self.train, spread(len(Table(self.train[1])), MAX_SCORED)), axis=0)
            scores["mean of the training samples"] = float(np.nanmean(np.square(truth - mean)))
        return scores

    def _montage(self, truth: np.ndarray, guesses: dict[str, np.ndarray], std: np.ndarray) -> Figure:
        low, high = shade_range(np.concatenate([truth.ravel(), guesses["predicted"].ravel()]))
        shades = {name: (to_pictures(array) - low) / (high - low) for name, array in guesses.items()}
        spreads = std.mean(axis=1)
        return figures.prediction_montage((to_pictures(truth) - low) / (high - low), shades, spreads)

    def _calibration(self, index: np.ndarray) -> None:
        assert self.test is not None
        truth, mean, std = self._compared(self.test, self.rows[index], include_noise=True)
        observed = np.isfinite(truth)
        apart = np.abs(truth - mean)[observed] / np.maximum(std[observed], 1e-12)
        shares = [float((apart <= norm.ppf(0.5 + 0.5 * level)).mean()) for level in LEVELS]
        text = "Share of the true values inside the predicted intervals, against the share that should be inside."
        self._figure(figures.calibration(LEVELS, shares), "calibration", text, "observed against nominal coverage")

    def _covariance(self, leaf: Leaf) -> tuple[np.ndarray, list[str]]:
        """Covariance over levels or over the values of training and test, and their names."""
        device = next((p.device for p in leaf.parameters()), torch.device("cpu"))
        if isinstance(leaf, IdLeaf):
            labels = leaf.levels[:MAX_LEVELS]
            values = torch.arange(len(labels), device=device)
        else:
            assert isinstance(leaf, InducingLeaf)
            numbers = leaf.shown_values.cpu().numpy()
            if self.test is not None:
                numbers = np.concatenate([numbers, Table(self.test[1]).numeric(leaf.columns_read)])
            numbers = np.unique(numbers, axis=0)
            numbers = numbers[spread(len(numbers), MAX_LEVELS)]
            labels = [", ".join(f"{value:.4g}" for value in row) for row in numbers]
            values = torch.from_numpy(numbers).to(device)
        with torch.no_grad():
            return leaf.covariance(values, values).cpu().numpy(), labels


def channels_first(model: GPPVAE, drawn: Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of a prediction from draws, (n, *model.shape_) each, whatever the user's order of axes is."""
    assert drawn.std is not None
    return from_input_layout(drawn.mean, model.layout_), from_input_layout(drawn.std, model.layout_)


def _has_covariance(leaf: Leaf) -> bool:
    return isinstance(leaf, (Learned, FreeForm, InducingLeaf))


def spread(n: int, most: int) -> np.ndarray:
    """At most `most` of n positions, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.array([], np.int64)


def curve_rows(history: list[dict[str, Any]], phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log as `loss_curves` takes it: one name for the validation error, no terms that are always zero.

    Phases that train the encoder alone are left out: it is fitted to finished latents, by a loss of another kind.

    Args:
        history: metrics per epoch.  phases: those that were trained, as in `resolved_`.
    """
    apart = {phase["name"] for phase in phases if set(phase["lr"]) == {"encoder"}}
    rows = [dict(row) for row in history if row["phase"] not in apart]
    for row in rows:
        for error in ("mse", "deviance"):
            valid = row.get(f"valid_{error}_prediction", row.get(f"valid_{error}_reconstruction"))
            if error == "mse" or valid is not None:
                row[f"valid_{error}"] = valid
    zero = [term for term in figures.TERMS if rows and all(not row.get(term) for row in rows)]
    return [{name: value for name, value in row.items() if name not in zero} for row in rows]


def vector_figure(truth: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Figure:
    """One panel per sample: true values as points, prediction as line with a band of two deviations."""
    with matplotlib.rc_context(figures.STYLE):
        columns = min(4, len(truth))
        rows = -(-len(truth) // columns)
        figure = Figure(figsize=(2.2 * columns + 0.4, 1.7 * rows + 0.3), layout="compressed")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for number, ax in enumerate(grid.flat):
            if number >= len(truth):
                ax.remove()
                continue
            at, middle, band = np.arange(truth[number].size), mean[number].ravel(), 2.0 * std[number].ravel()
            ax.fill_between(at, middle - band, middle + band, color=figures.PALETTE[5], alpha=0.35, linewidth=0)
            ax.plot(at, middle, color=figures.PALETTE[0])
            ax.plot(at, truth[number].ravel(), ".", color=figures.PALETTE[1], markersize=4)
    return figure
