"""The posterior given pseudo-observations, and how a bound on it changes with them.

q(B) = N(m, Sigma) is conditioned on values mu_n of f(row_n) with noise d_n, so every row acts on the f of all others.
With f_n = m'v_n and s_n = v_n' Sigma v_n, and g_n, h_n the gradients of what is to be minimised with respect to them,
all that a row has to know of the others is two sums, which the rows seen last are enough to estimate:

    G = sum v g'   A = sum h v v'
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.kernels.features import Features
from gppvae.prior.lowrank import assemble
from gppvae.prior.statistics import Statistics, row_sums


@dataclass(frozen=True)
class Conditioned:
    """q(B) = N(m, Sigma) at the sums of pseudo-observations, and the gradients of reconstruction + KL(q(B)) there.

    Attributes:
        columns: (H, 2H + 2L) Sigma, dS, m and dR side by side, all that a feature row is multiplied with; dS and dR
            are the gradients with respect to the sums S and R.
        n_latents: L.  kl: KL(q(B) || N(0, I)).
        late: whether dS and dR are of rows seen before, and not of all rows at once. Then what a row does to itself is
            not among what they say.
    """

    columns: Tensor
    n_latents: int
    kl: Tensor
    late: bool


@dataclass(frozen=True)
class AtRows:
    """What `Conditioned` says at feature rows.

    Attributes:
        V: the rows (n, H).  f: means V m (n, L).  s: variances (n, 1).
        P, D: V Sigma and V dS (n, H).  b: V dR (n, L).
    """

    V: Tensor
    P: Tensor
    D: Tensor
    f: Tensor
    b: Tensor
    s: Tensor


def pseudo_sums(features: Features, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor) -> Statistics:
    """S and R of these rows, and beside them A and G: what `condition_on_pseudo` needs of all rows.

    Args:
        features: of the rows.  mean: pseudo-observations (n, L).  noise: their variances (n,).
        g: gradient with respect to f at the rows (n, L).  h: with respect to s (n, 1).
    """
    c = noise.reciprocal().unsqueeze(1)
    return row_sums(features, [(c, c * mean), (h, g)])


def split_pseudo_sums(sums: Statistics) -> tuple[Statistics, Statistics]:
    """What q(B) is conditioned on (S, R), and what the rows ask for (A, G)."""
    width = sums.outer.shape[1] + sums.n_latents
    observed, asked = (
        Statistics(part.contiguous(), sums.sums, sums.n_latents) for part in sums.outer.split(width, dim=2)
    )
    return observed, asked


@torch.no_grad()
def condition_on_pseudo(observed: Statistics, asked: Statistics, tables: list[Tensor], sizes: list[int]) -> Conditioned:
    """q(B) given the sums over all rows, and the gradient with respect to them.

    With Sigma = (I + S)^-1 and m = Sigma R, for L latents:
        dR = Sigma (G + m),  dS = -(Sigma (A Sigma + L/2 Sigma - L/2 I)) - (dR m' + m dR') / 2

    Args:
        observed: S and R of all rows.
        asked: A and G of all rows, or of as many as are known, which then stand for all: rows to come are not among
            them.
        tables, sizes: of the kernel's features.
    Cost: O(H^3 + H^2 L + Q H^2), whatever N is.
    """
    L, known = observed.n_latents, float(asked.sums[3] / observed.sums[3])
    full, wanted, times = assemble(observed, tables, sizes), assemble(asked, tables, sizes), 1.0 / known
    cholesky = full.capacitance_cholesky()
    Sigma = torch.cholesky_inverse(cholesky).T  # the same numbers, in the order of the other matrices
    m = torch.cholesky_solve(full.R, cholesky)
    logdet, trace = 2.0 * cholesky.diagonal().log().sum(), Sigma.diagonal().sum()
    kl = 0.5 * (m.square().sum() + L * (trace - len(m) + logdet))
    dR = Sigma @ torch.add(m, wanted.R, alpha=times)
    inner = torch.addmm(Sigma, wanted.S, Sigma, beta=0.5 * L, alpha=times)
    inner.diagonal().sub_(0.5 * L)
    half = torch.addmm(Sigma @ inner, dR, m.T, beta=-0.5, alpha=-0.5)
    return Conditioned(torch.cat([Sigma, half + half.T, m, dR], dim=1), L, kl, known != 1.0)


def posterior_at(given: Conditioned, V: Tensor) -> AtRows:
    """f and s at feature rows, and what `pull_pseudo` needs there. Cost: O(n H (H + L))."""
    H, L = V.shape[1], given.n_latents
    P, D, f, b = (V @ given.columns).split([H, H, L, L], dim=1)
    return AtRows(V, P, D, f, b, (P * V).sum(1, keepdim=True))


def pull_pseudo(
    given: Conditioned, at: AtRows, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to V, mean and noise of rows, whose f and s have the gradients g and h.

    With c = 1/d and r = mu - f, what f and s say directly, plus what q(B) passes on from all rows,
        dV = g m' + 2 h P,    dV = c (2 D + mu dR') / n,  dmu = c b / n,  dd = -c^2 (V.D + f.b + r.b) / n
    or, when that is known late, from all others, plus what a row does to its own f and s through q(B):
        dV = c ((g.r - 2 h s) P - s g m'),  dmu = c s g,  dd = -c^2 s (g.r - h s)
    Late, f is behind mu as long as an encoder moves, wherever the others want it: r.b would have every row grow surer
    of itself, without end. It is left out then.

    Args:
        given: q(B).  at: of `posterior_at`.  mean, noise: the rows' pseudo-observations (n, L), (n,).
        g, h: gradients (n, L), (n, 1).  n: number that the gradients of `given`, of sums over rows, are divided by.
    Cost: O(n H L).
    """
    c = noise.reciprocal().unsqueeze(1)
    shared, own = c / n, c * float(given.late)
    hs, dmu = h * at.s, (own * at.s) * g
    excess = (g * (mean - at.f)).sum(1, keepdim=True) - hs
    dV = torch.addcmul(2.0 * h, own, excess - hs) * at.P
    dV.addcmul_(shared, at.D, value=2.0)
    dV.addmm_(torch.cat([g - dmu, shared * mean], dim=1), given.columns[:, -2 * given.n_latents :].T)
    pulled = at.f if given.late else mean
    of_all = shared * ((at.V * at.D).sum(1, keepdim=True) + (pulled * at.b).sum(1, keepdim=True))
    dd = -c * torch.addcmul(of_all, own * at.s, excess)
    return dV, dmu.addcmul_(shared, at.b), dd.squeeze(1)
