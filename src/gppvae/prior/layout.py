"""Layouts of the sums over rows: whole features, or x_n (x) w_q summed per value q of one column.

A product of kernels has features v_n = x_n (x) w_{q_n}. When the column behind w has few distinct values, samples are
summed per value q first, and only the sums are widened:

    S = sum_q ( sum_{n in q} x_n x_n' ) (x) ( w_q w_q' )        O(N M^2 + Q H^2) instead of O(N H^2), H = M R

Source: docs/math.md, "Structured Gram". Nothing outside `prior/` depends on it: widened sums are in the order of
`kernel.features`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.table import Column, Rows
from gppvae.kernels.base import Kernel, rowwise_outer

SMALL_PRODUCT = 3e5  # multiplications that take as long as the overhead of one more matrix product
FEW_ROWS = 4  # per group, below which outer products are summed row by row
MAX_ROW_PRODUCTS = 2**23  # numbers in those outer products
MAX_GROUPED_SUMS = 2**26  # numbers in the sums per value; beyond it the column is not split off


@dataclass(frozen=True)
class GroupedRows:
    """Rows x_n, each in one of Q groups.

    Attributes:
        x: (N, M).  group: (N,) int64 in [0, Q), or None when there is one group.  n_groups: Q.
    """

    x: Tensor
    group: Tensor | None = None
    n_groups: int = 1

    def outer(self, right: Tensor) -> Tensor:
        """Per group sum_n x_n right_n', (N, B) -> (Q, M, B); three ways of the same sum, by cost."""
        if self.group is None:
            return (self.x.T @ right).unsqueeze(0)
        N, M = self.x.shape
        if FEW_ROWS * self.n_groups > N and N * M * right.shape[1] < MAX_ROW_PRODUCTS:
            # Groups of a row or two: one outer product per row is less work than a matrix product per group.
            products = self.x.unsqueeze(2) * right.unsqueeze(1)  # (N, M, 1) (N, 1, B) -> (N, M, B)
            return products.new_zeros(self.n_groups, M, right.shape[1]).index_add(0, self.group, products)
        if N * M * right.shape[1] < SMALL_PRODUCT:
            # Few rows: x_n in the columns of its group, zeros elsewhere, and one product replaces Q.
            spread = self.x.new_zeros(N, self.n_groups, M)
            spread = spread.index_put((torch.arange(N, device=self.x.device), self.group), self.x)  # (N, Q, M)
            return (spread.flatten(1).T @ right).unflatten(0, (self.n_groups, M))  # (Q M, B) -> (Q, M, B)
        order = torch.argsort(self.group)
        counts = torch.bincount(self.group, minlength=self.n_groups).tolist()
        parts = zip(self.x[order].split(counts), right[order].split(counts), strict=True)
        return torch.stack([x.T @ r for x, r in parts])  # (Q, M, B)


class Layout:
    """How the rows of one kernel are summed.

    Args:
        kernel: bound; None for latents without a kernel, which have no features.
        split: coded column whose factors w are applied after summation; None sums whole features.
        training: the training rows; the groups are the distinct values of their split column.
    """

    def __init__(self, kernel: Kernel | None, split: str | None = None, training: Rows | None = None) -> None:
        self.kernel, self.split = kernel, split
        self._values = None if training is None else training[:0]  # the distinct values without the rows

    def rows(self, rows: Rows) -> GroupedRows:
        """x (N, M) of rows, and the group of each."""
        if self.kernel is None:
            return GroupedRows(torch.zeros(len(rows), 0, dtype=torch.float64, device=rows.device))
        if self.split is None:
            return GroupedRows(self.kernel.features(rows))
        column = rows.columns[self.split]
        xs = []
        for term in self.kernel.terms():
            parts = [leaf.row_factor(rows) for leaf in term.leaves if leaf.key != self.split]
            xs.append(functools.reduce(rowwise_outer, parts or [_ones(len(rows), rows)]))  # (N, M_i)
        group, n_groups = self._groups(column)
        return GroupedRows(torch.cat(xs, dim=1), group, n_groups)

    def _groups(self, column: Column) -> tuple[Tensor, int]:
        """Which of the training values each row holds, (N,), and their number Q.

        A table that was coded on its own, such as the training rows without those held out, may lack some values.
        """
        assert self.split is not None and self._values is not None
        known = self._values.columns[self.split].values
        if column.values is known or torch.equal(column.values, known):
            return column.index, len(known)
        # Equal values get equal numbers, whichever of the two sets they are from.
        _, number = torch.unique(torch.cat([known, column.values]), dim=0, return_inverse=True)
        place = torch.empty(int(number.max()) + 1, dtype=torch.int64, device=number.device)  # number -> group
        place[number[: len(known)]] = torch.arange(len(known), device=number.device)
        return place[number[len(known) :]][column.index], len(known)

    def widen(self, squares: Tensor, tall: Tensor) -> tuple[Tensor, Tensor]:
        """Sums per group over all features: K squares (Q, M, K, M) -> (K, H, H), and (Q, M, T) -> (H, T).

        Cost O(K Q H^2).
        """
        if self.split is None:
            return squares[0].transpose(0, 1), tall[0]
        assert self.kernel is not None
        tables, apart = self._tables(), widths(self.kernel, self.split)
        rows = []
        # Block (i, j) of the result is sum_q A_q[i, j] (x) w_qi w_qj', for all K at once.
        for of_row, left in zip(squares.permute(2, 1, 3, 0).split(apart, 1), tables, strict=True):  # (K, M_i, M, Q)
            blocks = []
            for block, right in zip(of_row.split(apart, 2), tables, strict=True):  # (K, M_i, M_j, Q)
                wide = block.reshape(-1, len(left)) @ rowwise_outer(left, right)  # (K M_i M_j, R_i R_j)
                shape = *block.shape[:3], left.shape[1], right.shape[1]
                blocks.append(wide.view(shape).transpose(2, 3).flatten(3, 4).flatten(1, 2))  # (K, M_i R_i, M_j R_j)
            rows.append(torch.cat(blocks, dim=2))
        talls = [
            (table.T @ part.flatten(1)).view(table.shape[1], -1, tall.shape[2]).transpose(0, 1).flatten(0, 1)
            for part, table in zip(tall.split(apart, 1), tables, strict=True)
        ]  # (R_i, M_i T) -> (M_i R_i, T) each
        order = self._order()
        return torch.cat(rows, dim=1)[:, order][:, :, order], torch.cat(talls)[order]  # (K, H, H), (H, T)

    def _tables(self) -> list[Tensor]:
        """Per term the factors w of the distinct values, (Q, R_i), with the scales in front of the term."""
        assert self.kernel is not None and self.split is not None and self._values is not None
        n_groups = self._values.columns[self.split].values.shape[0]
        tables = []
        for term in self.kernel.terms():
            apart = [leaf.table_factor(self._values) for leaf in term.leaves if leaf.key == self.split]
            table = functools.reduce(rowwise_outer, apart or [_ones(n_groups, self._values)])  # (Q, R_i)
            tables.append(table * term.amplitude() ** 0.5 if term.scales else table)
        return tables

    def _order(self) -> Tensor:
        """Position of each feature of `kernel.features` among the widened ones, (H,).

        Widened features of a term have the split column's axis last, wherever the kernel has it.
        """
        assert self.kernel is not None and self._values is not None
        found = []
        for term, at in self.kernel.placed_terms():
            ranks = [leaf.rank for leaf in term.leaves]
            last = [axis for axis, leaf in enumerate(term.leaves) if leaf.key == self.split]
            first = [axis for axis in range(len(ranks)) if axis not in last]
            usual = torch.arange(term.rank).reshape(ranks).permute(first + last).flatten()  # split column last
            found.append(torch.argsort(usual) + at.start)
        return torch.cat(found).to(self._values.device)


def widths(kernel: Kernel, split: str) -> list[int]:
    """Per term the number M_i of features that do not come from the column that is split off."""
    return [math.prod(leaf.rank for leaf in term.leaves if leaf.key != split) for term in kernel.terms()]


def plan_layout(kernel: Kernel | None, rows: Rows, batch_size: int) -> Layout:
    """The layout with the fewest operations for these training rows, summed in batches.

    Cost of S: N H^2, or N M^2 + Q H^2 when a column of Q values is split off, which also needs Q small products per
    batch.

    Args:
        kernel: bound.  rows: all training rows.  batch_size: rows per sum.
    """
    if kernel is None:
        return Layout(None)
    n, rank = len(rows), kernel.rank
    batches = -(-n // max(batch_size, 1))
    best, best_cost = None, float(n) * rank**2
    for key in dict.fromkeys(leaf.key for leaf in kernel.leaves()):
        q, m = rows.columns[key].values.shape[0], sum(widths(kernel, key))
        starts = batches * min(SMALL_PRODUCT, n / batches * m**2)  # overhead of one more product per batch
        cost = float(n) * m**2 + q * (float(rank) ** 2 + starts)
        if cost < best_cost and q * m**2 <= MAX_GROUPED_SUMS:
            best, best_cost = key, cost
    return Layout(kernel, best, rows)


def _ones(n: int, rows: Rows) -> Tensor:
    return torch.ones(n, 1, dtype=torch.float64, device=rows.device)
