"""What benchmarks/scale.py measures, each in a process of its own: python benchmarks/_scale.py TASK JSON."""

# ruff: noqa: N806 (the letters of the paper are the names here)
from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import LowRankRootAddedDiagLinearOperator, LowRankRootLinearOperator
from linear_operator.operators.diag_linear_operator import ConstantDiagLinearOperator
from torch import Tensor, nn

from gppvae import GPPVAE, Phase
from gppvae.data import arrays
from gppvae.data.table import Rows, Table
from gppvae.inference import Minibatch
from gppvae.inference.base import TOGETHER, back_propagate, known_of_rows
from gppvae.kernels.base import Kernel
from gppvae.kernels.parse import parse_kernel
from gppvae.prior.lowrank import gp_nll
from gppvae.prior.statistics import Statistics, StatisticsSum
from gppvae.prior.statistics import statistics as sums_of
from gppvae.training.distributed import ProcessGroup, first_process
from gppvae.training.loop import Trainer

CHUNK = 8192
OBJECTS = 400


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class Counter:
    """Counts the numbers that processes sum, and notes the count at the end of every epoch."""

    def __init__(self) -> None:
        self.total, self.at_epochs = 0, []
        sum_, log = ProcessGroup.sum_, Trainer.log

        def counted(world: ProcessGroup, tensors: Sequence[Tensor]) -> None:
            self.total += sum(tensor.numel() for tensor in tensors)
            sum_(world, tensors)

        def logged(trainer: Trainer, row: dict[str, Any]) -> None:
            self.at_epochs.append(self.total)
            log(trainer, row)

        ProcessGroup.sum_, Trainer.log = counted, logged  # type: ignore[method-assign]


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Epochs of one inference over a file; seconds of an epoch after the first, peak memory of the process."""
    arrays.IN_MEMORY_BYTES = 0  # from disk, however small
    counter = Counter()
    samples = np.load(task["file"], mmap_mode="r")
    n = len(samples)
    table = {"object": np.arange(n) // 16 % OBJECTS, "angle": np.arange(n) % 16 * 22.5}
    rates = {"encoder": 1e-3, "decoder": 1e-3, "prior": 1e-3, "noise": 1e-3}
    model = GPPVAE(
        "Learned(object, 8) * Periodic(angle, 360)",
        latent_dim=16,
        network=task["network"],
        width=task["width"],
        phases=[Phase("timed", task["inference"], task["epochs"], rates)],
        batch_size=task["batch_size"],
        device="cpu",
    ).fit(samples, table, progress=False)
    ends = [row["seconds"] for row in model.history_]
    return {
        "seconds": statistics.median(np.diff(ends).tolist()),
        "peak_bytes": peak_bytes(),
        "summed": counter.at_epochs[-1] - counter.at_epochs[-2],
        "summed_by_formula": summed_by_formula(model, task),
    }


def summed_by_formula(model: GPPVAE, task: dict[str, Any]) -> int:
    """The last row of the table of costs in docs/scaling.md: gradients of P parameters with 4 loss terms, and
    statistics with 4 sums."""
    inner_model, _ = model._fitted
    of_networks = sum(p.numel() for p in inner_model.autoencoder.parameters() if p.requires_grad)
    of_prior = sum(p.numel() for p in (*inner_model.kernel.parameters(), inner_model.log_alpha) if p.requires_grad)
    views = Table({"object": np.zeros(16, dtype=int), "angle": np.arange(16) * 22.5})
    features = inner_model.features(inner_model.kernel.code(views))
    Q, M, L = features.n_groups, sum(features.sizes), inner_model.latent_dim
    if task["inference"] == "exact":
        return of_networks + of_prior + 4 + Q * M * (2 * M + L) + 4
    steps = -(-task["N"] // task["batch_size"])
    every = Minibatch.batches_between(steps)
    together = min(TOGETHER, every)
    groups = steps // together
    conditioned = groups // (every // together)
    return steps * (of_networks + 4) + groups * of_prior + conditioned * (Q * M * (M + L) + 4)


class GPProblem:
    """The GP term on N rows that repeat one chunk, so that making them costs nothing: M, Q and L as given."""

    def __init__(self, n: int, m: int, q: int, n_latents: int) -> None:
        self.n, self.chunks = n, [min(CHUNK, n - start) for start in range(0, n, CHUNK)]
        size = min(CHUNK, n)
        draw = np.random.default_rng(0)
        table = Table({"object": draw.integers(0, OBJECTS, size), "view": np.arange(size) % q})
        self.kernel: Kernel = parse_kernel(f"Learned(object, {m}) * FreeForm(view)")
        generator = torch.Generator().manual_seed(0)
        self.kernel.bind(table, generator)
        self.rows: Rows = self.kernel.code(table)
        self.latents = torch.randn(size, n_latents, generator=generator, dtype=torch.float64)
        self.log_alpha = nn.Parameter(torch.tensor(0.1, dtype=torch.float64).log())

    def ours(self) -> float:
        """Value and gradients by two sweeps over statistics."""
        self._clear()
        totals = StatisticsSum()
        with torch.no_grad():
            for size in self.chunks:
                totals.add(sums_of(*self._arguments(size)))
        outer, sums = totals.value.outer.requires_grad_(), totals.value.sums.requires_grad_()
        features = self.kernel.features(self.rows[:1], "view (id)")
        value = gp_nll(Statistics(outer, sums, totals.value.n_latents), features.tables, features.sizes)
        value.backward()
        assert outer.grad is not None and sums.grad is not None
        pull = Statistics(outer.grad, sums.grad, totals.value.n_latents)
        for size in self.chunks:
            arguments = self._arguments(size, self.latents[:size].clone().requires_grad_())
            back_propagate(*known_of_rows(pull, arguments))
        return float(value.detach())

    def _arguments(self, size: int, latents: Tensor | None = None) -> tuple[Any, Tensor, None, Tensor]:
        features = self.kernel.features(self.rows[:size], "view (id)")
        return features, self.latents[:size] if latents is None else latents, None, self.log_alpha.exp()

    def _dense(self) -> tuple[Tensor, Tensor]:
        """V (N, H) with its graph, and Z (N, L)."""
        V = torch.cat([self.kernel.features(self.rows[:size]).dense() for size in self.chunks])
        return V, torch.cat([self.latents[:size] for size in self.chunks])

    def paper(self) -> float:
        """The coefficients of the paper, a = K^-1 Z, B = L K^-1 V - a a'V, c, from a dense V; then its expansion."""
        self._clear()
        V_graph, Z = self._dense()
        V, alpha = V_graph.detach(), self.log_alpha.exp()
        (n, rank), n_latents, a0 = V.shape, Z.shape[1], float(alpha.detach())
        S = V.T @ V
        C = torch.linalg.cholesky(S + a0 * torch.eye(rank, dtype=V.dtype))
        solved = torch.cholesky_solve(S, C)
        a = (Z - V @ torch.cholesky_solve(V.T @ Z, C)) / a0
        B = (V - V @ solved) * (n_latents / a0) - a @ (a.T @ V)
        trace = (n - solved.trace()) / a0
        c = 0.5 * (n_latents * trace - a.square().sum())
        ((B * V_graph).sum() + c * alpha).backward()
        logdet = 2.0 * C.diagonal().log().sum() + (n - rank) * np.log(a0)
        return float(0.5 * ((Z * a).sum() + n_latents * (logdet + n * np.log(2.0 * np.pi))))

    def gpytorch(self) -> float:
        """GPyTorch's marginal likelihood with a low-rank root plus a diagonal, and its gradients by autograd."""
        self._clear()
        V, Z = self._dense()
        noise = ConstantDiagLinearOperator(self.log_alpha.exp().reshape(1), diag_shape=len(V))
        cov = LowRankRootAddedDiagLinearOperator(LowRankRootLinearOperator(V), noise)
        Z = Z.requires_grad_()
        value = -MultivariateNormal(torch.zeros(len(V), dtype=V.dtype), cov).log_prob(Z.T).sum()
        value.backward()
        return float(value.detach())

    def _clear(self) -> None:
        for parameter in (*self.kernel.parameters(), self.log_alpha):
            parameter.grad = None


def gp_term(task: dict[str, Any]) -> dict[str, Any]:
    """Median seconds, peak memory and value of one way to compute the term."""
    problem = GPProblem(*(task[name] for name in ("N", "M", "Q", "L")))
    run: Callable[[], float] = getattr(problem, task["method"])
    GPProblem(1000, 2, 3, 2).ours()  # libraries are loaded before
    times, value = [], 0.0
    for _ in range(task["rounds"]):
        started = time.perf_counter()
        value = run()
        times.append(time.perf_counter() - started)
    return {"seconds": statistics.median(times), "value": value, "peak_bytes": peak_bytes()}


def main() -> None:
    torch.set_num_threads(1)
    work = {"train": train, "gp_term": gp_term}[sys.argv[1]]
    found = work(json.loads(sys.argv[2]))
    if first_process():
        print(json.dumps(found))


if __name__ == "__main__":
    main()
