"""Validation: errors on held-out data during training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows, Table
from gppvae.inference import Inference
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import decode_mean
from gppvae.models.vae import Autoencoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.loop import Validate
from gppvae.training.validated import Validated


def same_length(data: Samples, table: Table) -> None:
    """Raise ValueError unless there is one table row per sample."""
    if len(data) != len(table):
        raise ValueError(
            f"expected one table row per sample, got {len(data)} samples and {len(table)} rows; match them"
        )


def known_rows(prior: LatentPrior, table: Table) -> Rows | None:
    """Coded rows, or None when the table holds ids that the kernels do not know."""
    try:
        return prior.code(table)
    except ValueError:
        return None


def validator(model: GPPriorVAE, data: Samples, table: Table, batch_size: int, device: torch.device) -> Validate:
    """The validation of an inference: errors of predictions if all ids are known, else of reconstructions.

    Squared errors, or the deviance of counts, each sample at its own size. The log has them in the unit of the data;
    decisions are made by those of rows, with every value in the likelihood's unit.
    """
    data.check()
    data.keep_in_memory()
    same_length(data, table)
    autoencoder = model.autoencoder
    name = f"valid_{autoencoder.likelihood.values.error_name}"
    rows = known_rows(model.prior, table)  # None for unknown ids: the encoder can still be validated

    @torch.no_grad()
    def validate(inference: Inference, train: Epoch) -> Validated:
        by = inference.validated_by
        if by == "prediction" and rows is None:
            by = "reconstruction" if inference.trains_encoder else None
        if by == "reconstruction":
            epoch = Epoch(data, Rows({}, len(data)), batch_size, None, device, world=train.world)
            found, by_row = row_errors(epoch, autoencoder, lambda b: autoencoder.reconstruct(b.y, b.mask))
            return Validated({f"{name}_reconstruction": found}, by_row)
        weights = inference.weights(train) if by == "prediction" else None
        if rows is None or weights is None:
            return Validated({}, torch.zeros(0))
        epoch = Epoch(data, rows, batch_size, None, device, world=train.world)
        found, by_row = row_errors(
            epoch, autoencoder, lambda b: decode_mean(model, weights, b.rows, autoencoder.sizes(b))
        )
        return Validated({f"{name}_prediction": found}, by_row)

    return validate


def row_errors(epoch: Epoch, autoencoder: Autoencoder, predict: Callable[[Batch], Tensor]) -> tuple[float, Tensor]:
    """The mean error of an observed value in the unit of the data, and errors of rows in the likelihood's, (N,).

    A row counts as much as values were observed in it: the mean over rows is that over observed values.
    """
    likelihood = autoencoder.likelihood.values
    sums = torch.zeros(3, epoch.n_rows, dtype=torch.float64)  # errors, the same in units, numbers of values
    for batch in epoch:
        error = likelihood.error(batch.y, predict(batch))
        seen = torch.ones_like(error) if batch.mask is None else batch.mask.to(error)
        parts = [error * seen, error / likelihood.unit.to(error).square() * seen, seen]
        sums[:, batch.index] = torch.stack([part.flatten(1).sum(1).double().cpu() for part in parts])
    epoch.world.sum_([sums])
    errors, relative, counts = sums
    observed = counts.sum().clamp_min(1.0)
    return float(errors.sum() / observed), relative * (epoch.n_rows / observed)


def squared_errors(epoch: Epoch, predict: Callable[[Batch], Tensor]) -> Tensor:
    """Sums of the squared errors of `predict`, and the numbers of observed values, per channel or value, (2, C)."""
    channels = epoch.samples.shape[0]
    totals = torch.zeros(2, channels, dtype=torch.float64)
    for batch in epoch:
        error = (batch.y - predict(batch)).square()
        seen = torch.ones_like(error) if batch.mask is None else batch.mask.to(error)
        parts = [error * seen, seen]
        totals += torch.stack([part.reshape(len(part), channels, -1).sum((0, 2)).double().cpu() for part in parts])
    epoch.world.sum_([totals])
    return totals


@torch.no_grad()
def elbo(model: Autoencoder, epoch: Epoch) -> float:
    """Mean bound per sample of an autoencoder with z ~ N(0, I), in nats."""
    total = torch.zeros(1, dtype=torch.float64)
    for batch in epoch:
        mean, var = model.encode(batch.y, batch.mask)
        z = mean + var.sqrt() * batch.noise(mean.shape[1])
        nll = model.nll(batch, z).sum()
        kl = 0.5 * (mean.square() + var - 1.0 - var.log()).sum()
        total -= float(nll + kl)
    epoch.world.sum_([total])
    return float(total) / epoch.n_rows
