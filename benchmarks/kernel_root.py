"""Features at the anchors, forward and backward: the closed-form derivative against autograd of the plain expression.

    python benchmarks/kernel_root.py

Candidates take turns in one process, one thread. Writes results/kernel_root.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from _common import interleave, save
from torch import Tensor

from gppvae.kernels.root import root_at_anchors

NUGGET = 1e-8
CALLS = 20  # per timed round, so that a round is longer than the clock's resolution


def plain(K: Tensor, nugget: float) -> Tensor:
    """What root_at_anchors computes, differentiated by autograd."""
    lower = torch.linalg.cholesky(K + nugget * torch.eye(len(K), dtype=K.dtype))
    return torch.linalg.solve_triangular(lower, K, upper=False).T


def step(root: Callable[[Tensor, float], Tensor], K: Tensor, gradient: Tensor) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            root(K.detach().requires_grad_(), NUGGET).backward(gradient)

    return run


def main() -> None:
    torch.set_num_threads(1)
    started, cases = time.perf_counter(), []
    for n in (15, 64):
        x = torch.linspace(0.0, 1.0, n, dtype=torch.float64)
        K = (-0.5 * ((x[:, None] - x[None, :]) / 0.3) ** 2).exp()
        gradient = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        times = interleave({"plain": step(plain, K, gradient), "closed": step(root_at_anchors, K, gradient)}, 300)
        cases.append({
            "points": n,
            "plain_over_closed": times["plain"].ratio_to(times["closed"]),
            "calls_per_round": CALLS,
            **{name: timing.record() for name, timing in times.items()},
        })  # fmt: skip
        print(cases[-1], flush=True)
    print(f"written to {save('kernel_root', {'cases': cases}, 0, started)}")


if __name__ == "__main__":
    main()
