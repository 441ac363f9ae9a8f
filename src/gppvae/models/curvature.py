"""The likelihood of a sample as a function of its latents: gradient and curvature of -log p(y | decoder(z))."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Batch
from gppvae.likelihoods import Likelihood
from gppvae.models.vae import Autoencoder

LEAST_VARIANCE = 1e-12
EXACT_LATENTS = 16  # number of latents up to which every column of the Jacobian is computed
PROBES = 16  # random sign vectors per sample otherwise
PASS_ROWS = 128  # in one forward-mode pass: rows of the batch times latents

# The level of forward-mode derivatives is global to the process in torch, so threads must take turns.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Expansion:
    """-log p(y | z) around latents, row by row: value (B,), gradient (B, L) and Gauss-Newton curvature (B, L, L)."""

    nll: Tensor
    gradient: Tensor
    curvature: Tensor


class Signs:
    """Random signs for the values of a batch (Hutchinson probes), the same for any number of processes.

    Args:
        seed: of the signs.  total, start: rows of the batch over all processes, and the first of this process.
    """

    def __init__(self, seed: int, total: int, start: int = 0) -> None:
        self._generator, self._total, self._start = torch.Generator().manual_seed(seed), total, start

    @classmethod
    def of(cls, batch: Batch) -> Signs:
        return cls(batch.seed, batch.total, batch.start)

    def draw(self, like: Tensor) -> Tensor:
        """Random signs of the shape of `like`, (B, *shape), new ones at every call."""
        whole = torch.randint(0, 2, (self._total, *like.shape[1:]), generator=self._generator)
        return whole[self._start : self._start + len(like)].to(like) * 2.0 - 1.0


def jacobian(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Transposed Jacobian d function(z) / d z of each row, values flattened: (B, L) -> (B, L, K), in forward mode.

    Args:
        function: (B, L) -> (B, *shape), of each row by itself, for any B: several latents of a small batch share a
            pass, since a pass over few rows costs little less than one over many.
    Cost: one forward-mode pass per latent, or fewer.
    """
    n_rows, n_latents = z.shape
    found = []
    for directions in torch.eye(n_latents, dtype=z.dtype, device=z.device).split(max(1, PASS_ROWS // max(n_rows, 1))):
        rows, along = z.repeat(len(directions), 1), directions.repeat_interleave(n_rows, dim=0)  # (D B, L)
        with _one_at_a_time:
            column: Tensor = torch.func.jvp(function, (rows,), (along,))[1]  # (D B, *shape)
        found.append(column.unflatten(0, (len(directions), n_rows)).flatten(2))  # (D, B, K)
    return torch.cat(found).transpose(0, 1)  # (L, B, K) -> (B, L, K)


@torch.no_grad()
def jacobian_rows(
    autoencoder: Autoencoder,
    likelihood: Likelihood,
    z: Tensor,
    mask: Tensor | None,
    signs: Signs,
    probes: int = PROBES,
) -> Tensor:
    """S vectors r per sample with sum_s r r' = J'W J, where J = d E[y] / d z and W = 1 / Var[y], (B, S, L).

    W is zero for values that were not observed.

    For few latents r are the rows of W^(1/2) J, by one forward-mode pass per latent. For many they are
    J'W^(1/2) e / sqrt(S) with S = `probes` random sign vectors e, by S backward passes: equal in expectation
    (Hutchinson). Source: docs/math.md, "A posterior from sites".
    """
    z = autoencoder.for_decoder(z)
    raw = autoencoder.decode(z)
    # W^(1/2). A probability of exactly 0 or 1 has variance 0, and derivative 0: avoid 0 / 0.
    scale = likelihood.variance(raw).clamp_min(LEAST_VARIANCE).rsqrt().expand_as(likelihood.mean(raw))
    scale = scale if mask is None else scale * mask

    def mean(at: Tensor) -> Tensor:
        return likelihood.mean(autoencoder.decode(at))

    if z.shape[1] <= EXACT_LATENTS:
        return (jacobian(mean, z) * scale.flatten(1).unsqueeze(1)).transpose(1, 2)  # (B, K, L)
    rows = []
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        weighted = mean(at) * scale
        for number in range(probes):
            last = number == probes - 1
            e = signs.draw(weighted) / probes**0.5
            rows.append(torch.autograd.grad(weighted, at, e, retain_graph=not last)[0])  # J'W^(1/2) e, (B, L)
    return torch.stack(rows, dim=1)  # (B, S, L)


@torch.no_grad()
def expand(autoencoder: Autoencoder, likelihood: Likelihood, batch: Batch, z: Tensor) -> Expansion:
    """-log p(y | z) of the samples of a batch to second order around z, in float64.

    The curvature is the Gauss-Newton matrix J'W J.

    Args:
        likelihood: that of the autoencoder, or one with other noise.
    Cost: about min(L, 16) passes of the decoder.
    """
    rows = jacobian_rows(autoencoder, likelihood, z, batch.mask, Signs.of(batch))
    with torch.enable_grad():
        at = autoencoder.for_decoder(z).detach().requires_grad_()
        nll = likelihood.nll(batch.y, autoencoder.decode(at), batch.mask)
        (gradient,) = torch.autograd.grad(nll.sum(), at)
    return Expansion(nll.detach().double(), gradient.double(), (rows.transpose(1, 2) @ rows).double())
