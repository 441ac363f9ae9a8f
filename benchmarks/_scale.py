"""What benchmarks/scale.py measures, each in a process of its own: python benchmarks/_scale.py TASK JSON."""

# ruff: noqa: N806 (the letters of the paper are the names here)
from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from _common import peak_memory
from _gp_problem import Problem, by_paper, by_statistics, dense
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import LowRankRootAddedDiagLinearOperator, LowRankRootLinearOperator
from linear_operator.operators.diag_linear_operator import ConstantDiagLinearOperator
from torch import Tensor

from gppvae import GPPVAE, Phase
from gppvae.data import arrays
from gppvae.data.table import Table
from gppvae.inference.fixed_latents import CHUNK_ROWS
from gppvae.inference.minibatch import REFRESHES_PER_EPOCH
from gppvae.training.distributed import ProcessGroup, first_process
from gppvae.training.loop import Trainer

OBJECTS = 400


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
        "peak_bytes": peak_memory(),
        "summed": counter.at_epochs[-1] - counter.at_epochs[-2],
        "summed_by_formula": summed_by_formula(model, task),
    }


def summed_by_formula(model: GPPVAE, task: dict[str, Any]) -> int:
    """The last row of the table of costs in docs/scaling.md: gradients of P parameters with 4 loss terms, and
    statistics with 4 sums."""
    P = sum(parameter.numel() for parameter in model.model_.parameters() if parameter.requires_grad)
    views = Table({"object": np.zeros(16, dtype=int), "angle": np.arange(16) * 22.5})
    summed = model.prior_.groups[0].layout.rows(model.prior_.code(views))
    Q, M, L = summed.n_groups, summed.x.shape[1], model.prior_.n_latents
    if task["inference"] == "exact":
        return P + 4 + Q * M * (2 * M + L) + 4
    steps = -(-task["N"] // task["batch_size"])
    conditioned = -(-steps // max(1, steps // REFRESHES_PER_EPOCH))
    return steps * (P + 4) + conditioned * (Q * M * (M + L) + 4)


def by_gpytorch(problem: Problem, expected: bool) -> float:
    """GPyTorch's marginal likelihood with a low-rank root plus a diagonal, and its gradients by autograd."""
    assert not expected, "a marginal likelihood knows no variances of its values"
    problem.clear()
    V, Z = dense(problem)
    noise = ConstantDiagLinearOperator(problem.prior.groups[0].alpha.reshape(1), diag_shape=len(V))
    cov = LowRankRootAddedDiagLinearOperator(LowRankRootLinearOperator(V), noise)
    value = -MultivariateNormal(torch.zeros(len(V), dtype=V.dtype), cov).log_prob(Z.T).sum()
    value.backward()
    return float(value.detach())


METHODS: dict[str, Callable[[Problem, bool], float]] = {
    "ours": by_statistics,
    "paper": by_paper,
    "gpytorch": by_gpytorch,
}


def gp_term(task: dict[str, Any]) -> dict[str, Any]:
    """Median seconds, peak memory and value of one way to compute the term at sampled latents."""
    N, M, Q, L = (task[name] for name in ("N", "M", "Q", "L"))
    problem, run = Problem((N, M, Q, L), CHUNK_ROWS, seed=0), METHODS[task["method"]]
    by_statistics(Problem((1000, 2, 3, 2), CHUNK_ROWS, seed=0), expected=False)  # libraries are loaded before
    times, value = [], 0.0
    for _ in range(task["rounds"]):
        started = time.perf_counter()
        value = run(problem, False)
        times.append(time.perf_counter() - started)
    return {"seconds": statistics.median(times), "value": value, "peak_bytes": peak_memory()}


def main() -> None:
    torch.set_num_threads(1)
    work = {"train": train, "gp_term": gp_term}[sys.argv[1]]
    found = work(json.loads(sys.argv[2]))
    if first_process():
        print(json.dumps(found))


if __name__ == "__main__":
    main()
