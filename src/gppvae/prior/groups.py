"""Sums and products per group of rows, as few large or many small matrix products, whichever is sooner."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from gppvae.kernels.features import SMALL_PRODUCT, Features


class GroupedRows:
    """Rows x_n (N, M), each of one of Q groups.

    Few rows at a time are spread out: x_n stands in the columns of its group among Q M, zeros beside it, and one
    product does the work of Q at Q times the multiplications. Many rows are put in the order of their groups.
    """

    def __init__(self, features: Features) -> None:
        self.x, self.group, self.n_groups = features.x, features.group, features.n_groups
        self._features = features

    def part(self, rows: slice) -> GroupedRows:
        """Some of them, to compute with but not to differentiate."""
        return GroupedRows(dataclasses.replace(self._features, x=self.x.detach()[rows], group=self.group[rows]))

    def outer(self, right: Tensor) -> Tensor:
        """Per group the sum of x_n right_n', (N, B) -> (Q, M, B)."""
        if self.n_groups == 1:
            return (self.x.T @ right).unsqueeze(0)
        if self._few(right.shape[1]):
            return (self._spread.T @ right).unflatten(0, (self.n_groups, -1))
        order, counts = self._order
        parts = zip(self.x[order].split(counts), right[order].split(counts), strict=True)
        return torch.stack([x.T @ r for x, r in parts])

    def times(self, matrices: Tensor) -> Tensor:
        """Every row times its group's matrix, (Q, M, B) -> (N, B)."""
        if self.n_groups == 1:
            return self.x @ matrices[0]
        if self._few(matrices.shape[2]):
            return self._spread @ matrices.flatten(0, 1)
        return self._in_order(self.x, matrices)

    def back(self, y: Tensor, matrices: Tensor) -> Tensor:
        """Its group's matrix times every y_n: (N, B), (Q, M, B) -> (N, M)."""
        if self.n_groups == 1:
            return y @ matrices[0].T
        if self._few(y.shape[1]):
            of_all = (y @ matrices.flatten(0, 1).T).unflatten(1, (self.n_groups, -1))
            return of_all[self._numbers, self.group]
        return self._in_order(y, matrices.transpose(1, 2))

    def _few(self, width: int) -> bool:
        return self.x.numel() * width < SMALL_PRODUCT

    def _in_order(self, rows: Tensor, matrices: Tensor) -> Tensor:
        order, counts = self._order
        parts = rows[order].split(counts)
        product = torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
        return torch.empty_like(product).index_copy_(0, order, product)

    @functools.cached_property
    def _order(self) -> tuple[Tensor, list[int]]:
        """Rows in the order of their groups, and how many each group has."""
        counts = torch.bincount(self.group, minlength=self.n_groups).tolist()
        return torch.argsort(self.group), counts

    @property
    def _numbers(self) -> Tensor:
        return _up_to(len(self.x), self.group.device)

    @functools.cached_property
    def _spread(self) -> Tensor:
        """(N, Q M)."""
        empty = self.x.new_zeros(len(self.x), self.n_groups, self.x.shape[1])
        return empty.index_put_((self._numbers, self.group), self.x).flatten(1)


@functools.lru_cache(maxsize=8)
def _up_to(n: int, device: torch.device) -> Tensor:
    """0 to n - 1; batches of a training have one or two sizes."""
    return torch.arange(n, device=device)
