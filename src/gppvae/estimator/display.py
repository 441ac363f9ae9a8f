"""Text and HTML representations of estimators and predictions."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from gppvae.data.png import png_uri
from gppvae.data.settings import settings_rows
from gppvae.estimator.kernel_summary import kernel_text

if TYPE_CHECKING:
    from gppvae.estimator.base import Estimator
    from gppvae.estimator.impute import Imputation
    from gppvae.estimator.prediction import Prediction

MAX_PICTURES, MAX_ROWS, MAX_VALUES = 12, 8, 10


def fitted_text(model: Estimator) -> str:
    """Data, length and held-out error of a fit in one line; empty if the estimator is not fitted."""
    if not hasattr(model, "model_"):
        return ""
    words = [f"samples of shape {model.shape_}", f"{model.model_.prior.n_latents} latents"]
    if model.history_:
        words.append(f"{len(model.history_)} epochs")
    if hasattr(model, "fit_seconds_"):
        words.append(f"{model.fit_seconds_:.0f} s")
    compared = getattr(model, "comparison_", None)
    if compared is not None:
        best = compared.best_simple
        words.append(f"held-out error {compared.error:.4g} {compared.unit}")
        words.append(f"best simple answer {compared.errors[best]:.4g} ({best})")
    return "fitted: " + ", ".join(words)


def estimator_html(model: Estimator) -> str:
    """An estimator in a notebook: class, result of the fit, and settings."""
    settings = getattr(model, "resolved_", None) or model.get_params()
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in [*_kernel(model), *settings_rows(settings)]
    )
    state = fitted_text(model) or "not fitted yet"
    return (
        f"<div><b>{type(model).__name__}</b> <span style='opacity:.7'>{escape(state)}</span>"
        f"<details><summary>settings</summary><table>{rows}</table></details></div>"
    )


def _kernel(model: Any) -> list[tuple[str, str]]:
    """The row with the kernel, without default amplitudes if the model is fitted; none for a plain VAE."""
    if "kernel" not in model.get_params():
        return []
    return [("kernel", kernel_text(model) if hasattr(model, "prior_") else str(model.kernel))]


def prediction_text(prediction: Prediction | Imputation) -> str:
    """Shape and range of a prediction in one line."""
    mean = np.asarray(prediction.mean)
    words = [f"{len(mean)} samples of shape {mean.shape[1:]}"]
    if mean.size:
        words.append(f"mean from {mean.min():.4g} to {mean.max():.4g}")
        words.append(
            "no std: n_samples=0" if prediction.std is None else f"std {np.asarray(prediction.std).mean():.4g}"
        )
    draws = getattr(prediction, "draws", None)
    if draws is not None:
        words.append(f"{len(draws)} draws")
    return f"{type(prediction).__name__}({', '.join(words)})"


def prediction_html(prediction: Prediction | Imputation) -> str:
    """Images of the first samples, or a table of the first rows."""
    mean = np.asarray(prediction.mean)
    std = None if prediction.std is None else np.asarray(prediction.std)
    head = f"<p>{escape(prediction_text(prediction))}</p>"
    if not len(mean):
        return head
    pictures = _pictures(mean[:MAX_PICTURES])
    if pictures is not None:
        low, high = float(pictures.min()), float(pictures.max())
        shown = "".join(_img(picture, low, high) for picture in pictures)
        return f'{head}<div style="display:flex;flex-wrap:wrap;gap:4px">{shown}</div>'
    first = mean[:MAX_ROWS].reshape(min(len(mean), MAX_ROWS), -1)[:, :MAX_VALUES]
    names = list(getattr(prediction.mean, "columns", range(first.shape[1])))[: first.shape[1]]
    spread: Any = None if std is None else std[:MAX_ROWS].reshape(len(first), -1)[:, :MAX_VALUES]
    cells = [
        [f"{value:.4g}" + ("" if spread is None else f" \u00b1 {spread[i, j]:.2g}") for j, value in enumerate(row)]
        for i, row in enumerate(first)
    ]
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in row) + "</tr>" for row in cells)
    columns = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    return f"{head}<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"


def _pictures(samples: np.ndarray) -> np.ndarray | None:
    """Images in any order of axes as (n, h, w) or (n, h, w, 3); None if the samples are not images."""
    if samples.ndim == 3:
        return samples
    if samples.ndim != 4:
        return None
    last = samples.shape[3] in (1, 3) and samples.shape[1] not in (1, 3)
    colour = samples if last else np.moveaxis(samples, 1, -1)
    return colour if colour.shape[3] == 3 else colour.mean(axis=3)


def _img(picture: np.ndarray, low: float, high: float) -> str:
    pixels = np.rint(255 * np.clip((picture - low) / ((high - low) or 1.0), 0.0, 1.0)).astype(np.uint8)
    return f'<img src="{png_uri(pixels)}" width="96" alt="" style="image-rendering:pixelated">'
