"""Latents as a linear function of an object's learned vector: z = A'x + o, row by row."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels.columns import Learned
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import WeightPosterior


@torch.no_grad()
def latents_by_vector(
    model: GPPriorVAE, weights: WeightPosterior, rows: Rows, leaves: list[Learned]
) -> tuple[Tensor, Tensor]:
    """E z of rows as an affine function of the vectors of one column.

    Source: docs/math.md, "Objects that were not in the training set". Exact where each term of the kernel
    holds at most one of the leaves.

    Returns:
        A (N, J, L) and o (N, L): z = A'x + o with x the vectors of all leaves, end to end (J entries).
    Cost: J + 1 evaluations of the features of the rows.
    """

    def latents(entry: int | None) -> Tensor:
        with contextlib.ExitStack() as stack:
            start = 0
            for leaf in leaves:
                x = torch.zeros_like(leaf.x)
                if entry is not None and start <= entry < start + leaf.dim:
                    x[:, entry - start] = 1.0
                start += leaf.dim
                stack.enter_context(leaf.using(x))
            return weights.mean_at(model.features(rows).dense())

    offset = latents(None)
    columns = [latents(entry) - offset for entry in range(sum(leaf.dim for leaf in leaves))]
    return torch.stack(columns, dim=1), offset


def vector_variance(model: GPPriorVAE, weights: WeightPosterior, rows: Rows, leaves: list[Learned]) -> Tensor:
    """Var z that comes from the uncertainty of added vectors, (N, L); zero for ids of the training set."""
    leaf = leaves[0]
    A, _ = latents_by_vector(model, weights, rows, leaves)
    column = rows.columns[leaf.key]
    level = column.values[column.index]
    first = len(leaf.levels) - leaf.n_added
    root = torch.cat([leaf.added_root for leaf in leaves], dim=1)  # (P_added, J, J)
    new = torch.nonzero(level >= first).squeeze(1)
    variance = torch.zeros(len(rows), A.shape[2], dtype=A.dtype, device=A.device)
    spread = root[level[new] - first].transpose(1, 2) @ A[new]  # (N_new, J, L)
    variance[new] = spread.square().sum(1)
    return variance
