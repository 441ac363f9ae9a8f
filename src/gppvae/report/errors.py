"""Errors at rows that were not trained on: squared, or the deviance of counts, each sample at its own size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.estimator.validation import mean_error
from gppvae.likelihoods.counts import Counts
from gppvae.models.predict import PREDICT_ROWS, decode_mean

MEAN = "mean of the training samples"
ERRORS = {
    "mse": ("MSE", "Mean squared error"),
    "deviance": ("deviance", "Mean Poisson deviance, each sample at its size,"),
}


def error_words(model: GPPVAE) -> tuple[str, str]:
    """Names of this model's error: for the head of a column, and for the start of a sentence."""
    name = model.model_.autoencoder.likelihood.values.error_name
    return ERRORS.get(name, (name, f"Mean {name}"))


@torch.no_grad()
def count_scores(model: GPPVAE, part: tuple[Any, Any], index: np.ndarray, ours: str) -> dict[str, float] | None:
    """Deviance of predictions and of mean rates at the rows `index`; None unless the samples are counts.

    Args:
        part: samples and their table.  ours: name of the model's entry.
    """
    autoencoder = model.model_.autoencoder
    likelihood = autoencoder.likelihood.values
    if not isinstance(likelihood, Counts):
        return None
    data = Samples(part[0], model.channels, model.scale, model.missing).part(index)
    rows = model.prior_.code(Table(part[1]).take(index))
    epoch = Epoch(data, rows, PREDICT_ROWS, None, next(autoencoder.parameters()).device)

    def predicted(batch: Batch) -> Tensor:
        return decode_mean(model.model_, model.posterior_, batch.rows, autoencoder.sizes(batch))

    def mean_rates(batch: Batch) -> Tensor:
        return likelihood.mean(likelihood.sized(torch.zeros_like(batch.y), autoencoder.sizes(batch)))

    answers = {ours: predicted, f"{MEAN}, at their sizes": mean_rates}
    return {name: mean_error(epoch, autoencoder, answer) for name, answer in answers.items()}
