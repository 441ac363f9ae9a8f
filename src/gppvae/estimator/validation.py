"""Validation errors during training, and evidence lower bounds."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows, Table
from gppvae.data.words import shown
from gppvae.inference import Inference
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import decode_mean
from gppvae.models.vae import Autoencoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.loop import Validate
from gppvae.training.validated import Validated


def same_length(data: Samples, table: Table) -> None:
    """Raise ValueError unless there is one table row per sample, in the same order if both have labels."""
    if len(data) != len(table):
        raise ValueError(
            f"expected one table row per sample, got {len(data)} samples and {len(table)} rows; match them"
        )
    if data.labels is not None and table.labels is not None and _reordered(data.labels, table.labels):
        n = int((data.labels != table.labels).argmax())
        raise ValueError(
            f"expected samples and rows in one order, got the same labels in two (number {n} is "
            f"{shown(data.labels[n])} and {shown(table.labels[n])}); give samples.loc[table.index]"
        )


def _reordered(one: pd.Index, other: pd.Index) -> bool:
    """Whether two indexes of equal length have the same labels in different orders; 0 to N - 1 label nothing."""
    if one.equals(other) or not (one.is_unique and other.is_unique and one.isin(other).all()):
        return False
    return not one.isin(range(len(one))).all()


def code_if_known(prior: LatentPrior, table: Table) -> Rows | None:
    """Coded rows, or None if the table has unknown ids."""
    try:
        return prior.code(table)
    except ValueError:
        return None


def validator(model: GPPriorVAE, data: Samples, table: Table, batch_size: int, device: torch.device) -> Validate:
    """Validation for the training loop: errors of predictions if all ids are known, else of reconstructions.

    Errors are squared errors, or the deviance of counts given the size of each sample. The log shows them in the unit
    of the data; early stopping uses errors of rows in the units of the likelihood.
    """
    data.check()
    data.keep_in_memory()
    same_length(data, table)
    autoencoder = model.autoencoder
    name = f"valid_{autoencoder.likelihood.values.error_name}"
    rows = code_if_known(model.prior, table)  # with unknown ids, only reconstructions can be validated

    @torch.no_grad()
    def validate(inference: Inference, train: Epoch) -> Validated:
        kind = inference.validated_by
        if kind == "prediction" and rows is None:
            kind = "reconstruction" if inference.trains_encoder else None
        if kind == "reconstruction":
            epoch = Epoch(data, Rows({}, len(data)), batch_size, None, device, world=train.world)
            found, by_row = row_errors(epoch, autoencoder, lambda b: autoencoder.reconstruct(b.y, b.mask))
            return Validated({f"{name}_reconstruction": found}, by_row)
        weights = inference.weights(train) if kind == "prediction" else None
        if rows is None or weights is None:
            return Validated({}, torch.zeros(0))
        epoch = Epoch(data, rows, batch_size, None, device, world=train.world)
        found, by_row = row_errors(
            epoch, autoencoder, lambda b: decode_mean(model, weights, b.rows, autoencoder.sizes(b))
        )
        return Validated({f"{name}_prediction": found}, by_row)

    return validate


def row_errors(epoch: Epoch, autoencoder: Autoencoder, predict: Callable[[Batch], Tensor]) -> tuple[float, Tensor]:
    """Mean error of observed values in the unit of the data, and errors of rows in units of the likelihood, (N,).

    Rows are weighted by their numbers of observed values: the mean over rows is that over observed values.
    """
    likelihood = autoencoder.likelihood.values
    sums = torch.zeros(3, epoch.n_rows, dtype=torch.float64)  # errors, errors in units, numbers of values
    for batch in epoch:
        error = likelihood.error(batch.y, predict(batch))
        seen = torch.ones_like(error) if batch.mask is None else batch.mask.to(error)
        parts = [error * seen, error / likelihood.unit.to(error).square() * seen, seen]
        sums[:, batch.index] = torch.stack([part.flatten(1).sum(1).double().cpu() for part in parts])  # (3, B)
    epoch.world.sum_([sums])
    errors, relative, counts = sums
    observed = counts.sum().clamp_min(1.0)
    return float(errors.sum() / observed), relative * (epoch.n_rows / observed)


def squared_errors(epoch: Epoch, predict: Callable[[Batch], Tensor]) -> Tensor:
    """Sums of the squared errors of `predict`, and the numbers of observed values, per channel or value, (2, C)."""
    channels = epoch.samples.shape[0]
    totals = torch.zeros(2, channels, dtype=torch.float64)  # sums of squares, numbers of values
    for batch in epoch:
        error = (batch.y - predict(batch)).square()
        seen = torch.ones_like(error) if batch.mask is None else batch.mask.to(error)
        parts = [part.reshape(len(part), channels, -1) for part in (error * seen, seen)]  # (B, C, pixels) each
        totals += torch.stack([part.sum((0, 2)).double().cpu() for part in parts])
    epoch.world.sum_([totals])
    return totals


@torch.no_grad()
def elbo(model: Autoencoder, epoch: Epoch) -> float:
    """Mean evidence lower bound per sample of an autoencoder with z ~ N(0, I), in nats."""
    total = torch.zeros(1, dtype=torch.float64)
    for batch in epoch:
        mean, var = model.encode(batch.y, batch.mask)
        z = mean + var.sqrt() * batch.noise(mean.shape[1])
        nll = model.nll(batch, z).sum()
        kl = 0.5 * (mean.square() + var - 1.0 - var.log()).sum()
        total -= float(nll + kl)
    epoch.world.sum_([total])
    return float(total) / epoch.n_rows
