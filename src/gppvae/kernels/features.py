"""Feature rows of a kernel in the form that keeps the Gram matrix cheap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALL_PRODUCT = 3e5  # multiplications that take as long as starting one more small matrix product


@dataclass(frozen=True)
class Features:
    """Rows v_n of the factor V, blockwise v_n = x_n (x) w_{q_n}.

    Block i of a row is the outer product of its slice of `x` with row `group[n]` of `tables[i]`; a kernel
    that is not split by a column of few levels has one group and no tables: x is V.

    Attributes:
        x: (N, M), the slices of all blocks side by side.
        group: (N,) int64 in [0, Q).
        tables: per block (Q, R_i); none when nothing is split off.
        sizes: per block M_i, adding up to M.
    """

    x: Tensor
    group: Tensor
    tables: list[Tensor]
    sizes: list[int]

    @property
    def rank(self) -> int:
        """H, the number of columns of V."""
        if not self.tables:
            return self.x.shape[1]
        return sum(m * table.shape[1] for m, table in zip(self.sizes, self.tables, strict=True))

    @property
    def n_groups(self) -> int:
        """Q."""
        return self.tables[0].shape[0] if self.tables else 1

    def dense(self) -> Tensor:
        """V, (N, H). Cost O(N H)."""
        if not self.tables:
            return self.x
        blocks = [
            rowwise_outer(x_i, table[self.group])
            for x_i, table in zip(self.x.split(self.sizes, dim=1), self.tables, strict=True)
        ]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)


def rowwise_outer(left: Tensor, right: Tensor) -> Tensor:
    """Row n is left_n (x) right_n: (N, A), (N, B) -> (N, A*B)."""
    if right.shape[1] == 1:
        return left * right
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1)
