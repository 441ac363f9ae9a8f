"""The conditional VAE: an autoencoder that is told the view, so that its latent need only say which object."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gppvae.data.table import Column, Rows, Table
from gppvae.models.vae import Autoencoder
from gppvae.paper.cvae.networks import planes

CONDITION = "condition"


def view_conditions(table: Table, column: str, period: float | None, levels: list[str] | None = None) -> np.ndarray:
    """What the networks are told of each row's view, (N, C) float64.

    Args:
        table: the rows.  column: of views.
        period: of a numeric column: (sin, cos) of the angle it stands for; None: one-hot over `levels`.
        levels: the views known from training, for the one-hot code.
    """
    if period is not None:
        angle = 2.0 * np.pi * table.numeric((column,))[:, 0] / period
        return np.stack([np.sin(angle), np.cos(angle)], axis=1)
    known = np.array(levels or [], dtype=str)
    views = table.ids(column)
    unknown = sorted(set(views.tolist()) - set(known.tolist()))
    if unknown:
        raise ValueError(f"column {column!r} must hold views known from training, got {unknown[0]!r}; leave it out")
    return (views[:, None] == known[None, :]).astype(np.float64)


def condition_rows(conditions: np.ndarray) -> Rows:
    """Conditions (N, C) in the form in which batches carry them."""
    distinct, index = np.unique(conditions, axis=0, return_inverse=True)
    column = Column(torch.from_numpy(index.reshape(-1).astype(np.int64)), torch.from_numpy(distinct))
    return Rows({CONDITION: column}, len(conditions))


def conditions_of(rows: Rows, like: Tensor) -> Tensor:
    """The conditions of coded rows, (B, C), in the type of the networks."""
    return rows.columns[CONDITION].by_row.to(like)


def encode_given(autoencoder: Autoencoder, y: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of q(z | y, condition), (B, L) each."""
    return autoencoder.encode(torch.cat([y, planes(condition, *y.shape[2:])], dim=1))


def decode_given(autoencoder: Autoencoder, z: Tensor, condition: Tensor) -> Tensor:
    """The decoder's output at latents and conditions, (B, *shape)."""
    return autoencoder.decode(torch.cat([z, condition], dim=1))


def object_latents(
    mean: np.ndarray, var: np.ndarray, objects: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The latent of each wanted object: the average over all its views, (n, L) mean and variance.

    With independent q(z) per view the average of T of them has variance sum(var) / T^2.

    Args:
        mean, var: (N, L) of the encoded views.  objects: (N,) their ids.  wanted: (n,) ids.
    """
    means, variances = [], []
    for name in wanted:
        own = objects == name
        if not own.any():
            raise ValueError(
                f"expected an encoded view of every wanted object, got none of {str(name)!r}; leave it out"
            )
        means.append(mean[own].mean(axis=0))
        variances.append(var[own].sum(axis=0) / own.sum() ** 2)
    return np.stack(means), np.stack(variances)
