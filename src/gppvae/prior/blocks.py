"""Terms of many ids, `Categorical(id) * k`: features shared by all rows, and a block of features per id.

Such a term has R features for each of P ids, H = P R in all, of which only the R of its id are nonzero at a row. Split

    v_n = (v0_n, u_n in the block of id p_n)          v0 (H0), u (R)

and C = I + sum v v'/d is an arrowhead: one dense block, P small ones, and the arms between (prior/arrowhead.py).
Source: docs/math.md, "Terms of many ids". Weights B keep the order of `kernel.features`, so nothing outside `prior/`
depends on the split.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels.base import Kernel, Leaf, Term, rowwise_outer
from gppvae.kernels.ids import IdLeaf
from gppvae.prior.linalg import matvec, vecmat


@dataclass(frozen=True)
class NewIds:
    """Rows of ids that were not in the training set: their blocks of weights have the prior, B ~ N(0, 1).

    Attributes:
        own: u, (N, R), zero at rows of known ids.  block: (N,) in [0, n).  n: how many ids are new.
    """

    own: Tensor
    block: Tensor
    n: int

    def variance(self) -> Tensor:
        """|u|^2, the prior variance of their blocks, (N, 1)."""
        return self.own.square().sum(1, keepdim=True)

    def averaged_variance(self, per_value: int) -> Tensor:
        """Prior variance of averages over runs of `per_value` rows, (N / per_value, 1); rows of one id covary."""
        run = torch.arange(len(self.own), device=self.own.device) // per_value
        place, number = (run * self.n + self.block).unique(return_inverse=True)  # of each id in each run
        u = self.own.new_zeros(len(place), self.own.shape[1]).index_add(0, number, self.own / per_value)
        of_runs = self.own.new_zeros(len(self.own) // per_value)
        return of_runs.index_add(0, place // self.n, u.square().sum(1)).unsqueeze(1)

    def drawn(self, n_latents: int, generator: torch.Generator) -> Tensor:
        """u'B with weights drawn once for each id, (N, L)."""
        size = self.n, self.own.shape[1], n_latents
        B = torch.randn(size, generator=generator, dtype=torch.float64).to(self.own.device)  # (n, R, L)
        return vecmat(self.own, B[self.block])  # (N, R) (N, R, L) -> (N, L)


@dataclass(frozen=True)
class Places:
    """Positions among all H weights: of the shared ones (H0,), and of those of each id (P, R)."""

    shared: Tensor
    own: Tensor

    @property
    def n_weights(self) -> int:
        """H0 + P R; the features of any other weight are zero at every row."""
        return self.shared.numel() + self.own.numel()

    def only(self, blocks: Tensor) -> Places:
        """Positions of the shared weights and of those of a few ids, (G,)."""
        return Places(self.shared, self.own[blocks])

    def take(self, B: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (H, L) split into the shared ones, (H0, L), and those of each id, (P, R, L)."""
        return B[self.shared], B[self.own]

    def put(self, shared: Tensor, own: Tensor, rest: Tensor) -> Tensor:
        """The inverse of `take`, (H, L); weights without a position here keep the value in `rest`."""
        return rest.index_put((torch.cat([self.shared, self.own.flatten()]),), torch.cat([shared, own.flatten(0, 1)]))


@dataclass(frozen=True)
class BlockFeatures:
    """V (N, H), sparse: the nonzero entries of each row. `V @ B` equals the product with the dense matrix.

    Attributes:
        shared: v0, (N, H0).  own: u, (N, R).  block: p, (N,).  places: their positions among all H.
        new: rows of ids that were not in the training set; their rows of `own` are zero.
    """

    shared: Tensor
    own: Tensor
    block: Tensor
    places: Places
    new: NewIds | None = None

    def __matmul__(self, B: Tensor) -> Tensor:
        """V B, (N, L): a table look-up of R x L weights per row."""
        return self.shared @ B[self.places.shared] + vecmat(self.own, self._weights_of_rows(B))

    def __len__(self) -> int:
        return len(self.block)

    def __getitem__(self, rows: slice | Tensor) -> BlockFeatures:
        assert self.new is None, "rows are indexed in training only, where all ids are known"
        return replace(self, shared=self.shared[rows], own=self.own[rows], block=self.block[rows])

    def only(self, blocks: Tensor) -> BlockFeatures:
        """The same features of the weights of a few ids, (G,) sorted, which must include all ids of the rows."""
        assert self.new is None, "unknown ids have no weights"
        return replace(self, block=torch.searchsorted(blocks, self.block), places=self.places.only(blocks))

    def compact(self, blocks: Tensor) -> tuple[BlockFeatures, Tensor]:
        """As `only`, with positions in a weight matrix without gaps: shared weights first, then id by id.

        Returns:
            The features, and the positions of these weights among all H, (H0 + G R,).
        """
        few = self.only(blocks)
        (H0,), (G, R) = few.places.shared.shape, few.places.own.shape
        picked = torch.cat([few.places.shared, few.places.own.flatten()])
        number = torch.arange(H0 + G * R, device=picked.device)
        return replace(few, places=Places(number[:H0], number[H0:].view(G, R))), picked

    def square(self) -> BlockFeatures:
        """Every entry squared."""
        return replace(self, shared=self.shared.square(), own=self.own.square())

    def within(self, features: slice) -> BlockFeatures:
        """The same with zeros outside of these features, for example those of one term of the kernel."""
        shared, own = (
            ((places >= features.start) & (places < features.stop)).to(self.own.dtype)
            for places in (self.places.shared, self.places.own[0])  # a term has the blocks of all ids or of none
        )  # (H0,), (R,)
        new = None if self.new is None else replace(self.new, own=self.new.own * own)
        return replace(self, shared=self.shared * shared, own=self.own * own, new=new)

    def dense(self, rank: int) -> Tensor:
        """V as a dense matrix, (N, H), for a few rows of known ids."""
        V = self.shared.new_zeros(len(self), rank)
        V[:, self.places.shared] = self.shared
        return V.scatter(1, self.places.own[self.block], self.own)  # positions (N, R)

    def detach(self) -> BlockFeatures:
        return replace(self, shared=self.shared.detach(), own=self.own.detach())

    @property
    def x(self) -> Tensor:
        """The nonzero entries of each row, [v0, u], (N, H0 + R)."""
        return torch.cat([self.shared, self.own], dim=1)

    def back(self, g: Tensor, B: Tensor) -> Tensor:
        """g B' at the entries of `x`, (N, L) -> (N, H0 + R): the vector-Jacobian product of V B."""
        own = matvec(self._weights_of_rows(B), g)  # (N, R, L) (N, L) -> (N, R)
        return torch.cat([g @ B[self.places.shared].T, own], dim=1)

    def _weights_of_rows(self, B: Tensor) -> Tensor:
        return B[self.places.own[self.block]]  # (N, R, L)


class BlockLayout:
    """Splits the terms of a kernel into shared ones and those with a block per id of one column.

    Args:
        kernel: bound.  key: the coded column of ids.

    Attributes:
        places: positions of the features in `kernel.features`.
        n_blocks: P.
    """

    def __init__(self, kernel: Kernel, key: str) -> None:
        self.kernel, self.key = kernel, key
        shared, own = [torch.zeros(0, dtype=torch.int64)], []
        for term, at in kernel.placed_terms():
            places = torch.arange(at.start, at.stop)
            if self._has_block(term):
                own.append(self._by_id(term, places))
            else:
                shared.append(places)
        self.places = Places(torch.cat(shared).to(kernel.device), torch.cat(own, dim=1).to(kernel.device))
        self.n_blocks = len(self.places.own)

    def is_block(self, leaf: Leaf) -> bool:
        """Whether a leaf only selects the block of a row: k(p, p') = 1 if p = p', else 0."""
        return leaf.key == self.key and isinstance(leaf, IdLeaf) and leaf.independent

    def _has_block(self, term: Term) -> bool:
        return any(map(self.is_block, term.leaves))

    def _by_id(self, term: Term, places: Tensor) -> Tensor:
        """Positions of a term's features, by id, (P, R_i)."""
        axes = [axis for axis, leaf in enumerate(term.leaves) if self.is_block(leaf)]
        # (R_1, R_2, ...), one axis per leaf, with the axes of ids moved to the front
        places = places.reshape([leaf.rank for leaf in term.leaves]).movedim(axes, list(range(len(axes))))
        while len(axes) > 1:  # Categorical(id) * Categorical(id) is nonzero only where both ids are equal
            places = places.diagonal(dim1=0, dim2=1).movedim(-1, 0)  # (P, P, ...) -> (P, ...)
            axes.pop()
        return places.reshape(len(places), -1)  # (P, R_i)

    def features(self, rows: Rows) -> BlockFeatures:
        """V at rows. Cost O(N (H0 + R))."""
        factors = {leaf: leaf.row_factor(rows) for leaf in self.kernel.leaves() if not self.is_block(leaf)}
        one = torch.ones(len(rows), 1, dtype=torch.float64, device=rows.device)
        shared: list[Tensor] = [one[:, :0]]
        own: list[Tensor] = []
        for term in self.kernel.terms():
            parts = [factors[leaf] for leaf in term.leaves if leaf in factors]
            u = functools.reduce(rowwise_outer, parts or [one])  # (N, R_i)
            u = u * term.amplitude() ** 0.5 if term.scales else u  # without the one-hot factor of the id
            (own if self._has_block(term) else shared).append(u)
        column = rows.columns[self.key]
        return self._known_and_new(torch.cat(shared, dim=1), torch.cat(own, dim=1), column.index, len(column.values))

    def _known_and_new(self, shared: Tensor, own: Tensor, block: Tensor, n_ids: int) -> BlockFeatures:
        if n_ids == self.n_blocks:
            return BlockFeatures(shared, own, block, self.places)
        beyond = block >= self.n_blocks  # rows of new ids, (N,)
        known, zero = torch.where(beyond, 0, block), torch.zeros_like(own)
        new = NewIds(
            torch.where(beyond.unsqueeze(1), own, zero),  # (N, R)
            (block - self.n_blocks).clamp_min(0),
            n_ids - self.n_blocks,
        )
        return BlockFeatures(shared, torch.where(beyond.unsqueeze(1), zero, own), known, self.places, new)


def block_column(kernel: Kernel) -> str | None:
    """The coded column with the most ids among those of Categorical kernels; None when there is none."""
    sizes = {leaf.key: leaf.rank for leaf in kernel.leaves() if isinstance(leaf, IdLeaf) and leaf.independent}
    return max(sizes, key=lambda key: sizes[key], default=None)
