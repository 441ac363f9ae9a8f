"""The posterior given pseudo-observations, asked at the rows of a batch that are among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.prior.lowrank import Assembled

AddUp = Callable[[Sequence[Tensor]], None]


def one_process(tensors: Sequence[Tensor]) -> None:
    """Nothing to add up."""


@dataclass(frozen=True)
class Observed:
    """Rows whose pseudo-observations are part of the sums.

    Attributes:
        W: feature rows (n, H), equal to the rows asked for.  mean: observed values (n, L).
        noise: their variances (n,).
        copies: rows of the whole table that each of these stands for.
    """

    W: Tensor
    mean: Tensor
    noise: Tensor
    copies: float


def condition_at(
    full: Assembled, V: Tensor, own: Observed | None = None, add_up: AddUp = one_process
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (n, L) and variance (n, 1) of f at feature rows under `condition(full)`, and its KL.

    The values depend on the sums alone. Gradients also go to the observed rows, as if the sums had changed with
    them: each stands for `copies` rows of the table where it acts on others, and for one where it acts on itself
    (W equals V and may differ in where its gradient goes). Where processes share a batch, a row acts on the rows of
    all of them.

    Args:
        full: sums over all rows.  V: (n, H).  own: the rows of V as observations; None: they are none.
        add_up: adds tensors up over processes, in place.
    Cost: O(H^3 + H^2 L + n H (H + L)).
    """
    observed = (None, None, None, 0.0) if own is None else (own.W, own.mean, own.noise, own.copies)
    f, var, kl = _ConditionAt.apply(full.S, full.R, V, *observed, add_up)
    return f, var, kl


class _ConditionAt(torch.autograd.Function):
    """(S, R, V) -> f = V m, s = diag V Sigma V', KL(N(m, Sigma) || N(0, I)), m = Sigma R, Sigma = (I + S)^-1.

    With the gradients g, h, k of the three, P = V Sigma and the symmetric D = k L/2 (Sigma - Sigma^2) - P' diag(h) P:
        dR = Sigma (V'g + k m),  dS = D - dR m',  dV = g m' + 2 h P
    Sums change with observed rows by S = sum c v v', R = sum c v mu', c = 1/d. With a = V dR and r = mu - f:
        dmu = c a,  dW = c (r dR' - a m' + 2 V D),  dc = a.r + (V D).v
    and a row's effect on its own f and s, of which `copies` - 1 are taken back:
        dmu = c s g,  dc = s g.r - h s^2
    """

    @staticmethod
    def forward(
        ctx: Any,
        S: Tensor,
        R: Tensor,
        V: Tensor,
        W: Tensor | None,
        mean: Tensor | None,
        noise: Tensor | None,
        copies: float,
        add_up: AddUp,
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, L = R.shape
        C = S.clone()
        C.diagonal().add_(1.0)
        L_C = torch.linalg.cholesky(C)
        Sigma = torch.cholesky_inverse(L_C)
        m, P = Sigma @ R, V @ Sigma
        f, s = V @ m, (P * V).sum(1, keepdim=True)
        kl = 0.5 * (m.square().sum() + L * (Sigma.diagonal().sum() - H + 2.0 * L_C.diagonal().log().sum()))
        ctx.save_for_backward(Sigma, m, P, V, mean, noise, f, s)
        ctx.copies, ctx.add_up = copies, add_up
        return f, s, kl

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor, k: Tensor) -> tuple[Tensor | None, ...]:
        Sigma, m, P, V, mean, noise, f, s = ctx.saved_tensors
        hP = h * P
        dR = Sigma @ torch.addmm(k * m, V.T, g)
        D = torch.addmm(Sigma, Sigma, Sigma, alpha=-1.0).mul_(0.5 * m.shape[1] * k)
        D.addmm_(P.T, hP, alpha=-1.0)
        dV = torch.addmm(hP, g, m.T, beta=2.0)
        sums: tuple[Tensor | None, Tensor | None] = (None, None)
        if ctx.needs_input_grad[0]:
            sums = torch.addmm(D, dR, m.T, alpha=-1.0), dR.clone()
        ctx.add_up([dR, D])
        if mean is None or noise is None:
            return *sums, dV, None, None, None, None, None
        c, r, a, VD, sg = (1.0 / noise).unsqueeze(1), mean - f, V @ dR, V @ D, s * g
        once = 1.0 - ctx.copies
        pull = torch.add(sg * once, a, alpha=ctx.copies)
        dW = torch.addmm(VD, r, dR.T, beta=2.0).addmm_(a, m.T, alpha=-1.0).mul_(ctx.copies * c)
        dc = (pull * r).sum(1, keepdim=True) + ctx.copies * (VD * V).sum(1, keepdim=True) - once * h * s.square()
        return *sums, dV, dW, pull * c, (-dc * c.square()).squeeze(1), None, None
