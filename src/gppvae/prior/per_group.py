"""Between sums and matrices over all H features and the same as the groups of rows see them.

Rows of group q have features v = P_q x, with P_q made of row q of every table. Sums over x widen to sums over v: with
A_q of x x' and B_q of x y', sum_q P_q A_q P_q' and sum_q P_q B_q. The other way round, a symmetric X over features
acts on the rows of a group as P_q' X P_q, any other Y as P_q' Y, so that nothing wider than x is formed for a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.kernels.features import rowwise_outer


def widen(squares: Tensor, tall: Tensor, tables: list[Tensor], sizes: list[int]) -> tuple[Tensor, Tensor]:
    """K grouped sums of squares (Q, M, K, M) and others (Q, M, T), over all features: (K, H, H) and (H, T).

    Without tables there is nothing to widen.
    Source: docs/math.md, "Structured Gram". Cost O(K Q H^2).
    """
    if not tables:
        return squares[0].transpose(0, 1), tall[0]
    rows = []
    for of_row, left in zip(squares.permute(2, 1, 3, 0).split(sizes, 1), tables, strict=True):
        blocks = []
        for block, right in zip(of_row.split(sizes, 2), tables, strict=True):
            wide = block.reshape(-1, len(left)) @ rowwise_outer(left, right)
            shape = *block.shape[:3], left.shape[1], right.shape[1]
            blocks.append(wide.view(shape).transpose(2, 3).flatten(3, 4).flatten(1, 2))
        rows.append(_joined(blocks, 2))
    talls = [
        (table.T @ part.flatten(1)).view(table.shape[1], -1, tall.shape[2]).transpose(0, 1).flatten(0, 1)
        for part, table in zip(tall.split(sizes, 1), tables, strict=True)
    ]
    return _joined(rows, 1), _joined(talls, 0)


class PerGroup:
    """K symmetric matrices X, stacked (K, H, H), and one other Y (H, T), ready to be seen from groups of any tables.

    Args:
        squares, tall: X and Y.
        sizes, widths: M_i of the blocks of features, and R_i of their tables; none where nothing is split off.
    """

    def __init__(self, squares: Tensor, tall: Tensor, sizes: list[int], widths: list[int]) -> None:
        self.squares, self.tall, self.sizes = squares, tall, sizes
        self._seen: tuple[list[tuple[Tensor, int]], Tensor] | None = None
        self._pairs: list[list[Tensor]] = []  # of two blocks of X, (K M_i M_j, R_i R_j)
        self._blocks: list[Tensor] = []  # of Y, (R_i, M_i T)
        if not widths:
            return
        shapes = list(zip(sizes, widths, strict=True))
        spans = [m * r for m, r in shapes]
        for (m, r), of_row in zip(shapes, squares.split(spans, 1), strict=True):
            blocks = zip(shapes, of_row.split(spans, 2), strict=True)
            apart = [(block.unflatten(2, shape).unflatten(1, (m, r)), r * shape[1]) for shape, block in blocks]
            self._pairs.append([block.transpose(2, 3).reshape(-1, width) for block, width in apart])
        parts = zip(shapes, tall.split(spans), strict=True)
        self._blocks = [part.view(m, r, -1).transpose(0, 1).reshape(r, -1) for (m, r), part in parts]

    @torch.no_grad()
    def at(self, tables: list[Tensor]) -> Tensor:
        """Per group P_q' X P_q and P_q' Y side by side, (Q, M, K M + T); made once as long as the tables are the same.

        Cost O(K Q H^2 + Q H T).
        """
        if self._seen is not None:
            known, value = self._seen
            if all(t is table and v == table._version for (t, v), table in zip(known, tables, strict=True)):
                return value
        value = torch.cat([self._squares_at(tables), self._tall_at(tables)], dim=2)
        self._seen = [(table, table._version) for table in tables], value
        return value

    def tall_at(self, tables: list[Tensor]) -> Tensor:
        """The part of Y, (Q, M, T)."""
        return self.at(tables)[:, :, -self.tall.shape[1] :]

    def _squares_at(self, tables: list[Tensor]) -> Tensor:
        if not tables:
            return self.squares.transpose(0, 1).flatten(1).unsqueeze(0)
        rows = []
        for left, m, pairs in zip(tables, self.sizes, self._pairs, strict=True):
            blocks = [
                (rowwise_outer(left, right) @ pair.T).view(len(left), len(self.squares), m, -1)
                for right, pair in zip(tables, pairs, strict=True)
            ]
            rows.append(_joined(blocks, 3).transpose(1, 2).flatten(2))
        return _joined(rows, 1)

    def _tall_at(self, tables: list[Tensor]) -> Tensor:
        if not tables:
            return self.tall.unsqueeze(0)
        products = zip(tables, self._blocks, self.sizes, strict=True)
        return _joined([(table @ block).unflatten(1, (m, -1)) for table, block, m in products], 1)

    @torch.no_grad()
    def pull(self, by: Tensor, tables: list[Tensor]) -> list[Tensor]:
        """Gradients with respect to the tables, when that of `at(tables)` is `by`, symmetric where X is."""
        if not tables:
            return []
        of_squares, of_tall = by.split([by.shape[2] - self.tall.shape[1], self.tall.shape[1]], dim=2)
        of_rows = of_squares.unflatten(2, (len(self.squares), -1)).transpose(1, 2).split(self.sizes, dim=2)
        talls = of_tall.split(self.sizes, 1)
        pulled = []
        for of_row, pairs, tall, own in zip(of_rows, self._pairs, talls, self._blocks, strict=True):
            total = tall.flatten(1) @ own.T
            for block, pair, other in zip(of_row.split(self.sizes, 3), pairs, tables, strict=True):
                by_products = (block.flatten(1) @ pair).view(len(by), -1, other.shape[1])
                total.add_((by_products @ other.unsqueeze(2)).squeeze(2), alpha=2.0)
            pulled.append(total)
        return pulled


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
