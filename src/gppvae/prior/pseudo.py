"""The posterior given pseudo-observations, and how a bound on it changes with them.

q(B) = N(m, Sigma) is conditioned on values mu_n of f(row_n) with noise d_n, so every row acts on the f of all others.
With f_n = m'v_n and s_n = v_n' Sigma v_n, and g_n, h_n the gradients of what is to be minimised with respect to them,
all that a row has to know of the others is two sums, which the rows seen last are enough to estimate:

    G = sum v g'   A = sum h v v'
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gppvae.prior.groups import GroupedRows
from gppvae.prior.per_group import PerGroup, widen
from gppvae.prior.statistics import Statistics, row_sums


@dataclass(frozen=True)
class Conditioned:
    """q(B) = N(m, Sigma), and the gradients of reconstruction + KL(q(B)) with respect to the sums it is made of.

    Attributes:
        moments: dS and Sigma, and dR and m side by side. dR is the gradient with respect to R, and
            dS - (dR m' + m dR') / 2 that with respect to S.
        kl: KL(q(B) || N(0, I)).
        by_tables: gradients with respect to the tables, which all rows share.
        late: whether the gradients are of rows seen before, and not of all rows at once. Then what a row does to
            itself is not among what they say.
    """

    moments: PerGroup
    kl: Tensor
    by_tables: list[Tensor]
    late: bool


@dataclass(frozen=True)
class AtRows:
    """What `Conditioned` says at rows x.

    Attributes:
        f: means (n, L).  b: dR'x (n, L).  s: variances (n, 1).  P, D: Sigma x and dS x (n, M).  sD: x.D (n, 1).
    """

    f: Tensor
    b: Tensor
    s: Tensor
    P: Tensor
    D: Tensor
    sD: Tensor

    def part(self, rows: slice) -> AtRows:
        return AtRows(*(getattr(self, field.name)[rows] for field in fields(self)))


def pseudo_sums(rows: GroupedRows, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor) -> Statistics:
    """S and R of these rows, and beside them A and G: what q(B) and its gradients need of all rows.

    Args:
        rows: features.  mean: pseudo-observations (n, L).  noise: their variances (n,).
        g: gradient with respect to f at the rows (n, L).  h: with respect to s (n, 1).
    """
    c = noise.reciprocal().unsqueeze(1)
    return Statistics.observed(row_sums(rows, (c, c * mean), (h, g)), *mean.shape)


def split_pseudo_sums(sums: Statistics) -> tuple[Statistics, Statistics]:
    """What q(B) is conditioned on (S, R), and what the rows ask for (A, G)."""
    width = sums.outer.shape[1] + sums.n_latents
    SR, AG = sums.outer.split(width, dim=2)
    return Statistics(SR, sums.sums, sums.n_latents), Statistics(AG, sums.sums.clone(), sums.n_latents)


@torch.no_grad()
def condition_on_pseudo(observed: Statistics, asked: Statistics, tables: list[Tensor], sizes: list[int]) -> Conditioned:
    """q(B) given the sums over all rows, and the gradient with respect to them.

    With Sigma = (I + S)^-1 and m = Sigma R, for L latents:
        dS = -Sigma (A Sigma + L/2 Sigma - L/2 I),  dR = Sigma (G + m)

    Args:
        observed: S and R of all rows.
        asked: A and G of all rows, or of as many as are known, which then stand for all: rows to come are not among
            them.
        tables, sizes: of the kernel's features.
    Cost: O(H^3 + H^2 L + Q H^2), whatever N is.
    """
    L, known = observed.n_latents, float(asked.sums[3] / observed.sums[3])
    sums = torch.cat([observed.outer, asked.outer / known], dim=2).unflatten(2, (2, -1))
    grouped, tall = sums[..., :-L], sums[..., -L:].flatten(2)
    (S, A), RG = widen(grouped, tall, tables, sizes)
    H, (R, G) = len(S), RG.split(L, dim=1)
    eye, squares = torch.eye(H, dtype=S.dtype, device=S.device), S.new_empty(2, H, H)
    cholesky = torch.linalg.cholesky(S + eye)
    root = torch.linalg.solve_triangular(cholesky, eye, upper=False)
    Sigma = torch.mm(root.T, root, out=squares[1])
    inner = torch.addmm(Sigma, A, Sigma, beta=-0.5 * L, alpha=-1.0)
    inner.diagonal().add_(0.5 * L)
    torch.mm(Sigma, inner, out=squares[0])
    m = Sigma @ R
    dR = Sigma @ (m + G)
    twice_kl = torch.add(m.square().sum(), Sigma.diagonal().sum() - H, alpha=L)
    kl = torch.add(0.5 * twice_kl, cholesky.diagonal().log().sum(), alpha=L)
    moments = PerGroup(squares, torch.cat([dR, m], dim=1), sizes, [table.shape[1] for table in tables])
    by_tables: list[Tensor] = []
    if tables:  # through f and s of all rows, and through the sums: what `pull_pseudo` says of x, summed per group
        by_means = torch.baddbmm(tall, grouped[:, :, 0], moments.tall_at(tables).roll(L, dims=2), alpha=-1.0)
        by_tables = moments.pull(torch.cat([grouped.flatten(2), by_means], dim=2), tables)
    return Conditioned(moments, kl, by_tables, known != 1.0)


def posterior_at(given: Conditioned, rows: GroupedRows, tables: list[Tensor]) -> AtRows:
    """f and s at rows, and what `pull_pseudo` needs there. Cost: O(n M (M + L))."""
    M, L = rows.x.shape[1], given.moments.tall.shape[1] // 2
    products, b, f = rows.times(given.moments.at(tables)).split([2 * M, L, L], dim=1)
    products = products.unflatten(1, (2, -1))
    sD, s = (products * rows.x.unsqueeze(1)).sum(2).split(1, dim=1)
    D, P = products.unbind(1)
    return AtRows(f, b, s, P, D, sD)


@torch.no_grad()
def pull_pseudo(
    given: Conditioned,
    at: AtRows,
    rows: GroupedRows,
    tables: list[Tensor],
    mean: Tensor,
    noise: Tensor,
    g: Tensor,
    h: Tensor,
    n: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to x (n, M), mean (n, L) and noise (n,) of rows, whose f and s have the gradients g and h.

    With c = 1/d and r = mu - f, what f and s say directly, plus what q(B) passes on from all rows,
        dx = m g + 2 h P,    dx = c (2 D + dR r - m b) / n,  dmu = c b / n,  dd = -c^2 (x.D + r.b) / n
    or, when that is known late, from all others, plus what a row does to its own f and s through q(B):
        dx = c ((g.r - 2 h s) P - s m g),  dmu = c s g,  dd = -c^2 s (g.r - h s)
    Late, f is behind mu as long as an encoder moves, wherever the others want it: r.b would have every row grow surer
    of itself, without end. It is left out then.

    Args:
        given, rows, tables: as in `posterior_at`, and `at` what it said.
        mean, noise: the rows' pseudo-observations (n, L), (n,).  g, h: gradients (n, L), (n, 1).
        n: number that the gradients of `given`, of sums over rows, are divided by.
    Cost: O(n M L).
    """
    c, r, hs = noise.reciprocal().unsqueeze(1), mean - at.f, h * at.s
    shared, own = c / n, c * float(given.late)
    own_s, excess = own * at.s, (g * r).sum(1, keepdim=True) - hs
    dmu = torch.addcmul(own_s * g, shared, at.b)
    dx = rows.back(torch.cat([shared * r, g - dmu], dim=1), given.moments.tall_at(tables))
    dx.addcmul_(torch.addcmul(2.0 * h, own, excess - hs), at.P).addcmul_(shared, at.D, value=2.0)
    of_all = at.sD if given.late else at.sD + (r * at.b).sum(1, keepdim=True)
    dd = -c * torch.addcmul(shared * of_all, own_s, excess)
    return dx, dmu, dd.squeeze(1)
