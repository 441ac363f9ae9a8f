"""The posterior given pseudo-observations, asked at the rows of a batch that are among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.data.world import ALONE
from gppvae.prior.lowrank import Assembled
from gppvae.prior.posterior import SharedCovariance

AddUp = Callable[[Sequence[Tensor]], None]


@dataclass(frozen=True)
class Observed:
    """Rows whose pseudo-observations are part of the sums that q(B) was conditioned on.

    Attributes:
        W: feature rows (n, H), equal to the rows asked for.  mean: observed values (n, L).
        noise: their variances (n,).
        copies: rows of the whole table that each of these stands for.
    """

    W: Tensor
    mean: Tensor
    noise: Tensor
    copies: float


def posterior_at(
    weights: SharedCovariance, V: Tensor, own: Observed, full: Assembled | None = None, add_up: AddUp = ALONE.sum_
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (n, L) and variance (n, 1) of f at feature rows under q(B), and KL(q(B) || N(0, I)).

    The values depend on q(B) and V alone. Gradients also go to the sums, and to the observed rows as if they had
    changed the sums: each stands for `copies` rows of the table where it acts on others, and for one where it acts
    on itself. Where processes share a batch, a row acts on the rows of all of them.

    Args:
        weights: q(B) as `condition` gives it.  V: (n, H).  own: these rows as observations.
        full: the sums, where they have a gradient.  add_up: adds tensors up over processes, in place.
    Cost: O(n H (H + L)).
    """
    sums = (None, None) if full is None else (full.S, full.R)
    f, var, kl = _PosteriorAt.apply(weights, *sums, V, own.W, own.mean, own.noise, own.copies, add_up)
    return f, var, kl


class _PosteriorAt(torch.autograd.Function):
    """f = V m, s = diag V Sigma V', KL(N(m, Sigma) || N(0, I)) with m = Sigma R, Sigma = (I + S)^-1.

    With the gradients g, h, k of the three, P = V Sigma and the symmetric D = k L/2 (Sigma - Sigma^2) - P' diag(h) P:
        dR = Sigma (V'g + k m),  dS = D - dR m',  dV = g m' + 2 h P
    Sums change with observed rows by S = sum c v v', R = sum c v mu', c = 1/d. With a = V dR and r = mu - f:
        dmu = c a,  dW = c (r dR' - a m' + 2 V D),  dc = a.r + (V D).v
    and a row's effect on its own f and s, of which `copies` - 1 are taken back:
        dmu = c s g,  dc = s g.r - h s^2
    """

    @staticmethod
    def forward(
        ctx: Any, weights: SharedCovariance, S: Tensor | None, R: Tensor | None, V: Tensor, W: Tensor, mean: Tensor,
        noise: Tensor, copies: float, add_up: AddUp,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        P = V @ weights.covariance
        f, s = V @ weights.mean, (P * V).sum(1, keepdim=True)
        ctx.save_for_backward(P, V, mean, noise, f, s)
        ctx.weights, ctx.copies, ctx.add_up = weights, copies, add_up
        return f, s, weights.kl().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g, h, k), (P, V, mean, noise, f, s) = grads, ctx.saved_tensors
        m, hP = ctx.weights.mean, h * P
        dR = ctx.weights.covariance @ torch.addmm(k * m, V.T, g)
        D = torch.addmm(k * ctx.weights.kl_by_sums, P.T, hP, alpha=-1.0)
        dV = torch.addmm(hP, g, m.T, beta=2.0)
        dS_dR: tuple[Tensor | None, Tensor | None] = (None, None)
        if ctx.needs_input_grad[1]:
            dS_dR = torch.addmm(D, dR, m.T, alpha=-1.0), dR.clone()
        ctx.add_up([dR, D])
        c, r, a, VD, sg = (1.0 / noise).unsqueeze(1), mean - f, V @ dR, V @ D, s * g
        once = 1.0 - ctx.copies
        pull = torch.add(sg * once, a, alpha=ctx.copies)
        dW = torch.addmm(VD, r, dR.T, beta=2.0).addmm_(a, m.T, alpha=-1.0).mul_(ctx.copies * c)
        dc = (pull * r).sum(1, keepdim=True) + ctx.copies * (VD * V).sum(1, keepdim=True) - once * h * s.square()
        return None, *dS_dR, dV, dW, pull * c, (-dc * c.square()).squeeze(1), None, None
