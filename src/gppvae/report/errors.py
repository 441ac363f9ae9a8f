"""Names of the errors at held-out rows."""

from __future__ import annotations

from gppvae.estimator.comparison import VARIANCE

ERRORS = {  # measure -> (head of a column, start of a sentence)
    VARIANCE: ("squared error", "Squared error, each value in units of its variance,"),
    "mse": ("MSE", "Mean squared error"),
    "deviance": ("deviance", "Mean Poisson deviance, each sample at its size,"),
}


def error_words(measure: str) -> tuple[str, str]:
    """Names of an error: for the head of a column, and for the start of a sentence."""
    return ERRORS.get(measure, (measure, f"Mean {measure}"))
