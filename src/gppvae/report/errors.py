"""Errors at rows that were not trained on, in words."""

from __future__ import annotations

from gppvae.estimator import GPPVAE
from gppvae.estimator.comparison import VARIANCE

ERRORS = {
    VARIANCE: ("squared error", "Squared error, each value in units of its variance,"),
    "mse": ("MSE", "Mean squared error"),
    "deviance": ("deviance", "Mean Poisson deviance, each sample at its size,"),
}


def error_words(measure: str) -> tuple[str, str]:
    """Names of an error: for the head of a column, and for the start of a sentence."""
    return ERRORS.get(measure, (measure, f"Mean {measure}"))


def own_measure(model: GPPVAE) -> str:
    """Name of the error that the model's likelihood has."""
    return model.model_.autoencoder.likelihood.values.error_name
