"""Figures and report of a fitted model as methods.

The code is in gppvae.report, which is above the estimators and imported only when a method is called.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

Part = tuple[Any, Any]


def _drawing(module: str) -> Any:
    """A module of gppvae.report, imported by name, since estimators must not depend on reports."""
    return importlib.import_module(f"gppvae.report.{module}")


class Plotting:
    """`report` and `plot_*` of GPPVAE. Plots are SVG: a notebook shows them, `save("figure.svg")` writes a file."""

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        train: Part | None = None,
        test: Part | None = None,
        title: str | None = None,
    ) -> Path:
        """Write the report, one self-contained HTML file (docs/howto/read_the_report.md).

        Args:
            path: a folder, usually that of the run; it gets report.html and figures/.
            train: (samples, table) of the training set.  test: (samples, table) of a test set.
            title: of the page; when None, that of the previous report there, or the name of the folder.

        Returns:
            The path of the page.
        """
        written: Path = _drawing("run").write_report(path, self, train=train, test=test, title=title)
        return written

    def plot_training(self) -> Any:
        """The loss, its terms and the validation error over epochs."""
        return self._plot("plot_training")

    def plot_covariances(self) -> Any:
        """The learned covariance of each part of the kernel, as labelled heat maps."""
        return self._plot("plot_covariances")

    def plot_explain(self, table: Any) -> Any:
        """Shares and curves of the kernel's terms over the rows of `table` (see `explain`)."""
        return self._plot("plot_explain", self.explain(table))  # type: ignore[attr-defined]

    def plot_predictions(self, samples: Any, table: Any, each: int = 4) -> Any:
        """Worst, typical and best predictions of known samples, `each` of them, with their uncertainty.

        Args:
            samples: preferably not from the training set.  table: their rows.
        """
        return self._plot("plot_predictions_of", samples, table, each)

    def plot_calibration(self, samples: Any, table: Any) -> Any:
        """Coverage of the predicted intervals against their nominal level.

        Args:
            samples: not from the training set.  table: their rows.
        """
        return self._plot("plot_calibration_of", samples, table)

    def _plot(self, name: str, *given: Any) -> Any:
        """A figure of the fitted model, from a function of gppvae.report.plots."""
        _ = self._fitted_model  # type: ignore[attr-defined]  # raises NotFittedError
        return getattr(_drawing("plots"), name)(self, *given)
