"""The report of a run: figures and a self-contained page from a run folder and, if given, its data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.run_files import model_file
from gppvae.data.settings import settings_rows
from gppvae.data.subset import Subset, evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.estimator.comparison import MODEL, Comparison, compared
from gppvae.estimator.kernel_summary import column_rows, kernel_rows, kernel_text
from gppvae.report import plots
from gppvae.report.along import plot_along
from gppvae.report.checked import (
    DRAWS,
    LEVELS,
    MAX_CHECKED,
    MAX_SCORED,
    Checked,
    Part,
    channel_names,
    channels_first,
    check_rows,
    named_entry,
    opened,
)
from gppvae.report.describe import REPORT, phase_rows, run_facts
from gppvae.report.errors import error_words
from gppvae.report.images import is_image, shade_range, to_pictures
from gppvae.report.kept import keep_sections, kept_sections
from gppvae.report.page import Page, Panel
from gppvae.report.svg import Plot
from gppvae.report.turning import find_turn, measured

FIGURES = "figures"
OURS = "GPPVAE"
MAX_NAMED = 12  # channels in the calibration table
RESULTS, PREDICTIONS, CALIBRATION = "Results", "Predictions", "Can the uncertainty be trusted?"
TURN, ALONG, EXPLAINED = "Every view of every object", "Measured and predicted", "What each term explains"
LEARNED, TRAINING, FACTS = "What the kernel learned", "Training", "Facts"
WITHOUT_DATA = (LEARNED, TRAINING, FACTS)  # sections that every report computes again


def write_report(
    folder: str | os.PathLike[str],
    model: GPPVAE | None = None,
    *,
    train: Part | None = None,
    test: Part | None = None,
    scores: Mapping[str, float] | None = None,
    others: Mapping[str, np.ndarray] | None = None,
    title: str | None = None,
    about: str | None = None,
) -> Path:
    """Write report.html and figures/ into the run folder.

    Sections that need data are kept from the last report of this folder, unless the data are given.

    Args:
        folder: of the run.  model: fitted; loaded from the folder when None.
        train, test: (samples, table) of training and of held-out data.
        scores: mean squared error at the test rows by method, the model first; computed when None.
        others: predictions of other methods at the test rows, (n, *shape) or (n, h, w) each, by name.
        title, about: of the page; when None, those of the last report, else the folder name and a summary of the model.
    """
    report = RunReport(Path(folder), model or GPPVAE.load(folder), train, test, title, about)
    report.write_sections(scores, others or {})
    return report.page.write(Path(folder) / REPORT)


class RunReport:
    """The sections of the page; each is added if the model and the data allow it."""

    def __init__(
        self, folder: Path, model: GPPVAE, train: Part | None, test: Part | None, title: str | None, about: str | None
    ) -> None:
        for part in (train, test):
            if part is not None:
                opened(model, part)  # raises before anything is written
        self.kept = kept_sections(folder, model_file(folder))
        self.folder, self.model, self.train = folder, model, train
        self.test = test = None if test is None else _of_known_ids(model, test)
        name = os.fsencode(folder.resolve().name).decode("utf-8", "replace")  # UTF-8 even in the C locale
        title = title or self.kept.title or name
        about = about or (self.kept.about if self.kept.current else None)
        members = f", {model.prior_.copies} networks side by side" if model.prior_.copies > 1 else ""
        about = about or f"{kernel_text(model)}, {model.prior_.n_latents} latent dimensions{members}"
        self.page = Page(title, about)
        self.images = is_image(model.shape_)
        self.rows = np.array([], dtype=np.int64) if test is None else evenly(len(Table(test[1])), MAX_SCORED)

    def write_sections(self, scores: Mapping[str, float] | None, others: Mapping[str, np.ndarray]) -> None:
        """Add all sections in order; those that need missing data come from the last report of the folder."""
        makers: dict[str, Callable[[], None]] = {
            RESULTS: lambda: self.results(scores),
            PREDICTIONS: lambda: self.predictions(others),
            CALIBRATION: self.calibration,
            TURN: self.turntable,
            ALONG: self.along,
            EXPLAINED: self.explained,
            LEARNED: self.covariances,
            TRAINING: self.training,
            FACTS: self.facts,
        }
        kept = self.kept.sections
        any_data = self.train is not None or self.test is not None
        for heading, make in makers.items():
            if heading in WITHOUT_DATA or any_data or heading not in kept:
                make()
            if heading in kept and heading not in self.page.parts():
                note = "" if self.kept.current else "<p>From the last report; the model has been saved again since.</p>"
                self.page.carry(heading, note + kept[heading])
        made = {heading: html for heading, html in self.page.parts().items() if heading not in WITHOUT_DATA}
        if any_data and made:
            texts = self.page.title, self.page.subtitle or ""
            keep_sections(self.folder, model_file(self.folder), *texts, made)
        if not made.keys() & {RESULTS, PREDICTIONS, EXPLAINED}:
            self.page.text("Errors, cases and shares need the data: gppvae report RUN --table table.csv --data ...")

    # -- sections

    def results(self, scores: Mapping[str, float] | None) -> None:
        """Errors beside those of simple answers, at the test rows, or else at the rows that the fit held out."""
        measure, n_rows = self.model.model_.autoencoder.likelihood.values.error_name, len(self.rows)
        if scores is None:
            found = self.model.comparison_ if self.test is None else self._comparison(self.test)
            if found is None:
                return
            scores, measure, n_rows = found.errors, found.measure, found.n_rows
        self.page.section(RESULTS)
        named = {OURS if name == MODEL else name: error for name, error in scores.items()}
        self._score_table(named, measure, n_rows)

    def _comparison(self, test: Part) -> Comparison:
        training = None if self.train is None else opened(self.model, self.train)
        return compared(self.model, training, opened(self.model, test))

    def _score_table(self, scores: Mapping[str, float], measure: str, n_rows: int) -> None:
        names = list(scores)
        simple = [name for name in names[1:] if np.isfinite(scores[name])]
        if simple:
            best = min(simple, key=lambda name: scores[name])
            ours, theirs = scores[names[0]], scores[best]
            self.page.text(
                f"The best simple answer, \u201c{best}\u201d, has {theirs / max(ours, 1e-300):.2g} times the error."
                if ours < theirs
                else f"The model does not beat the simple answer \u201c{best}\u201d. "
                "Train longer, try another kernel, or use the simple answer."
            )
        rows = list(scores.items())
        head, words = error_words(measure)
        caption = f"{words} at {n_rows} rows that were not trained on. Lower is better."
        self.page.table(["method", head], rows, caption, highlight_row=0)
        self.page.download("errors.csv", _csv(pd.DataFrame(rows, columns=["method", head.lower()])), "these errors")

    def predictions(self, others: Mapping[str, np.ndarray]) -> None:
        """Worst, typical and best predictions."""
        checked = self._checked()
        if checked is None:
            return
        what = "that were not trained on" if self.test is not None else "of the training data"
        self.page.section(
            PREDICTIONS,
            f"The worst, typical and best of {len(checked.truth)} rows {what}. Each sample is predicted from its table "
            "row alone.",
        )
        few = self._checked_rows()
        extra = {name: np.asarray(array)[few].reshape(len(few), *self.model.shape_) for name, array in others.items()}
        self._plot(plots.plot_cases(self.model, checked, extra), "predictions")
        columns = {name: checked.table[name] for name in self.model.prior_.columns()}
        std = checked.std.reshape(len(checked.std), -1).mean(axis=1)  # (n,)
        frame = pd.DataFrame(columns | {checked.measure: checked.errors(), "std": std})
        self.page.download("rows.csv", _csv(frame), "error and mean predicted standard deviation of each of these rows")

    def calibration(self) -> None:
        """Coverage of the predicted intervals, per channel."""
        checked = self._checked()
        if checked is None or self.test is None:
            return
        self.page.section(
            CALIBRATION,
            "Predictions of new samples have intervals. These are the shares of true values at held-out rows that lie "
            "inside them.",
        )
        self._plot(plots.plot_calibration(self.model, checked), "calibration")
        names = channel_names(self.model)
        per_value = [("all", checked.coverage(), checked.truth)]
        shown = list(range(len(names))) if len(names) <= MAX_NAMED else plots.worst_channels(checked, len(names))
        if len(names) > 1:
            per_value += [(names[i], checked.coverage(i), checked.truth[:, i]) for i in shown]
        rows = []
        for name, coverage, truth in per_value:
            shares = {level: float(np.interp(level, LEVELS, coverage)) for level in (0.5, 0.9)}
            verdict = plots.coverage_verdict(shares, len(truth))  # samples are independent, their values are not
            rows.append((name, f"{shares[0.5]:.0%}", f"{shares[0.9]:.0%}", verdict))
        subset = "" if len(names) <= MAX_NAMED else f" The worst {len(shown)} of {len(names)} channels."
        text = f"Share of true values inside the 50 % and 90 % intervals, with a verdict on these.{subset}"
        self.page.table(["channel", "in 50 %", "in 90 %", "intervals are"], rows, text)

    def turntable(self) -> None:
        """Objects that turn through all views; opens at the least certain view, a held-out one if there is any."""
        turn = find_turn(self.model, self.test) if self.images else None
        if turn is None:
            return
        drawn = self.model.predict(turn.rows(), n_samples=DRAWS)
        mean, std = (channels_first(self.model, array) for array in (drawn.mean, drawn.std))
        size = (len(turn.objects), len(turn.views), *self.model.shape_)  # (objects, views, channels, h, w)
        frames, held = measured(self.model, turn, self.train, self.test)
        low, high = shade_range(np.concatenate([mean.ravel(), frames[np.isfinite(frames)]]))
        spreads = std.reshape(size).mean(axis=2)
        known = np.isfinite(frames).reshape(*size[:2], -1).any(axis=2)
        panels: dict[str, Any] = {"measured": Panel(to_pictures(frames), low, high)} if self.train or self.test else {}
        panels["predicted"] = Panel(to_pictures(mean.reshape(size)), low, high)
        panels["uncertainty"] = Panel(spreads, 0.0, float(spreads.max()) or 1.0, "magma")
        self.page.section(
            TURN, f"The model predicts every {turn.view_column} of every {turn.object_column}, measured or not."
        )
        names = [named_entry(turn.object_column, name) for name in turn.objects]
        start = first_cell(spreads.reshape(*size[:2], -1).mean(axis=2), held, known)
        why = "held out" if held[start] else "least certain of those measured" if known.any() else "least certain"
        text = f"Opens on a view that is {why}. Measured, predicted and its standard deviation "
        text += f"(brightest: {spreads.max():.2g})."
        self.page.turntable(panels, turn.labels(), text, names, held if held.any() else None, ms=120, start=start)

    def along(self) -> None:
        """Curves and maps of vectors."""
        plot = plot_along(self.model, self.train, self.test)
        if plot is not None and plot.charts:
            self.page.section(ALONG)
            self._plot(plot, "along")

    def explained(self) -> None:
        """Shares and curves of the kernel's terms at the training rows."""
        part = self.train or self.test
        if part is None or len(Table(part[1])) < 2:
            return
        explained = self.model.explain(part[1])
        self.page.section(
            EXPLAINED,
            "The share of each kernel term in the predicted signal, and its effect along its columns with the other "
            "terms at their means. Bands are two standard deviations.",
        )
        self._plot(plots.plot_explain(self.model, explained), "explained")
        self.page.download("shares.csv", explained.shares.to_csv(), "shares of the terms")
        self.page.download("shares_by_channel.csv", explained.by_channel.to_csv(), "shares per channel")
        curves = [
            {"term": term.name, "column": curve.columns[0], "value": value, "by": curve.by, "level": curve.level,
             "change": score, "std": std}
            for term in explained.terms for curve in term.curves if len(curve.columns) == 1
            for value, score, std in zip(curve.values, curve.score, curve.score_std, strict=True)
        ]  # fmt: skip
        if curves:
            self.page.download("curves.csv", _csv(pd.DataFrame(curves)), "curves of the terms")

    def covariances(self) -> None:
        """Learned parameters and covariances."""
        self.page.section(LEARNED)
        copies = self.model.prior_.copies
        ranges = f" Ranges are over the {copies} networks of the ensemble." if copies > 1 else ""
        self.page.table(["part of the kernel", "learned"], kernel_rows(self.model), f"Parts of the kernel.{ranges}")
        tables = [] if self.test is None else [Table(self.test[1])]
        plot = plots.plot_covariances(self.model, tables)
        if plot.charts:
            self._plot(plot, "covariances")
        for number, found in enumerate(plots.covariances(self.model, tables)):
            frame = pd.DataFrame(found.matrix, index=found.labels, columns=found.labels)
            self.page.download(f"covariance_{number}.csv", frame.to_csv(), f"learned covariance of {found.name}")

    def training(self) -> None:
        """Loss terms over epochs."""
        plot = plots.plot_training(self.model)
        if not plot.charts:
            return
        self.page.section(TRAINING)
        self._plot(plot, "loss")
        self.page.download("history.csv", _csv(pd.DataFrame(self.model.history_)), "the log, one row per epoch")

    def facts(self) -> None:
        """Columns, settings and facts for reproducing the run."""
        self.page.section(FACTS)
        self.page.table(["column", "in training"], column_rows(self.model), "Columns the kernel reads.")
        self.page.facts(run_facts(self.folder, self.model) | {"shape of a sample": self.model.shape_})
        self.page.table(["phase", "how it was trained"], phase_rows(self.model), "Training phases.")
        self.page.table(["setting", "value"], settings_rows(self.model.resolved_), "Settings used in training.")

    # -- pieces

    def _plot(self, plot: Plot, name: str) -> None:
        plot.save(self.folder / FIGURES / f"{name}.svg")
        self.page.plot(plot)

    def _checked_rows(self) -> np.ndarray:
        part = self.test if self.test is not None else self.train
        assert part is not None
        rows = self.rows if self.test is not None else evenly(len(Table(part[1])), MAX_SCORED)
        return rows[evenly(len(rows), MAX_CHECKED)]

    def _checked(self) -> Checked | None:
        part = self.test if self.test is not None else self.train
        if part is None or not len(Table(part[1])):
            return None
        if not hasattr(self, "_found"):
            self._found = check_rows(self.model, part, self._checked_rows())
        return self._found


def _of_known_ids(model: GPPVAE, part: Part) -> Part | None:
    """The rows with known ids, at which the model can predict; None if there are none."""
    table = Table(part[1])
    known = model.prior_.knows(table)
    if known.all():
        return part
    kept = np.flatnonzero(known)
    return (Subset(part[0], kept), table.take(kept)) if len(kept) else None


def first_cell(uncertain: np.ndarray, held: np.ndarray, known: np.ndarray) -> tuple[int, int]:
    """Object and view to open on: the least certain of the held-out cells, else of the measured ones, else of all.

    Args:
        uncertain, held, known: (objects, views) each.
    """
    candidates = held if held.any() else known if known.any() else np.ones_like(known)
    cell, n_views = int(np.where(candidates, uncertain, -np.inf).argmax()), uncertain.shape[1]
    return cell // n_views, cell % n_views


def _csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, float_format="%.7g"))
