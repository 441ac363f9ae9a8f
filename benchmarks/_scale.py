"""What benchmarks/scale.py measures, each in a process of its own: python benchmarks/_scale.py TASK JSON."""

# ruff: noqa: N806 (the letters of the paper are the names here)
from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from _common import peak_memory
from _gp_problem import Problem, by_paper, by_statistics, dense
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import LowRankRootAddedDiagLinearOperator, LowRankRootLinearOperator
from linear_operator.operators.diag_linear_operator import ConstantDiagLinearOperator
from torch import Tensor

from gppvae import GPPVAE, Phase
from gppvae.data import arrays
from gppvae.data.table import Table
from gppvae.data.world import ALONE
from gppvae.estimator import base, measuring
from gppvae.inference.fixed_latents import CHUNK_ROWS
from gppvae.inference.minibatch import REFRESHES_PER_EPOCH
from gppvae.training.distributed import ProcessGroup, current_world, first_process
from gppvae.training.loop import Trainer

OBJECTS = 400


def model_of(task: dict[str, Any]) -> GPPVAE:
    """Not fitted; one phase of one inference, at constant rates."""
    own = ["weights"] if task["inference"] == "global" else ["encoder", "noise"]
    return GPPVAE(
        "Learned(object, 8) * Periodic(angle, 360)",
        latent_dim=16,
        network=task["network"],
        width=task["width"],
        phases=[Phase("timed", task["inference"], task["epochs"], dict.fromkeys(["decoder", "prior", *own], 1e-3))],
        batch_size=task["batch_size"],
        device="cpu",
    )


def data_of(task: dict[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The first N samples of the file, and their table."""
    arrays.IN_MEMORY_BYTES = 0  # from disk, however small
    n = np.arange(task["N"])
    return np.load(task["file"], mmap_mode="r")[: len(n)], {"object": n // 16 % OBJECTS, "angle": n % 16 * 22.5}


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Epochs of one inference over a file; seconds of an epoch after the first, peak memory of the process."""
    ends = [row["seconds"] for row in model_of(task).fit(*data_of(task), progress=False).history_]
    return {"seconds": statistics.median(np.diff(ends).tolist()), "peak_bytes": peak_memory()}


class Enough(Exception):  # noqa: N818 (not an error)
    """The last epoch has ended."""


def epochs(task: dict[str, Any], after: Callable[[Trainer, dict[str, Any]], None]) -> None:
    """Train, and do no more when the last epoch has ended; `after` is called with the metrics of every epoch."""

    def logged(trainer: Trainer, row: dict[str, Any]) -> None:
        after(trainer, row)
        if row["epoch"] == task["epochs"]:
            raise Enough

    with mock.patch.object(Trainer, "log", logged), contextlib.suppress(Enough):
        model_of(task).fit(*data_of(task), progress=False)


def count(task: dict[str, Any]) -> dict[str, Any]:
    """What a process hands to torch.distributed in the last epoch: messages, their bytes, and the numbers in them."""
    sum_, all_reduce = ProcessGroup.sum_, dist.all_reduce
    counts, ends = np.zeros(3, dtype=int), []
    by_formula = 0

    def summed(world: ProcessGroup, tensors: Sequence[Tensor]) -> None:
        counts[0] += sum(tensor.numel() for tensor in tensors)
        sum_(world, tensors)

    def sent(message: Tensor, *args: Any, **options: Any) -> Any:
        counts[1:] += 1, message.nbytes
        return all_reduce(message, *args, **options)

    def after(trainer: Trainer, row: dict[str, Any]) -> None:
        nonlocal by_formula
        ends.append(counts.copy())
        by_formula = summed_by_formula(trainer, task)

    with mock.patch.object(ProcessGroup, "sum_", summed), mock.patch.object(dist, "all_reduce", sent):
        epochs(task, after)
    found = dict(zip(("summed", "messages", "bytes"), (ends[-1] - ends[-2]).tolist(), strict=True))
    return found | {"summed_by_formula": by_formula if task["processes"] > 1 else 0}


def summed_by_formula(trainer: Trainer, task: dict[str, Any]) -> int:
    """The last row of the table of costs in docs/scaling.md: gradients of P parameters with 4 loss terms, and
    statistics with 4 sums."""
    prior = trainer.model.prior
    P = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    views = Table({"object": np.zeros(16, dtype=int), "angle": np.arange(16) * 22.5})
    summed = prior.groups[0].layout.rows(prior.code(views))
    Q, M, L = summed.n_groups, summed.x.shape[1], prior.n_latents
    steps = -(-task["N"] // task["batch_size"])
    if task["inference"] == "exact":
        return P + 4 + Q * M * (2 * M + L) + 4
    if task["inference"] == "global":  # means and standard deviations of the weights are learned
        return steps * (P + 2 * Q * M * L + 4)
    conditioned = -(-steps // max(1, steps // REFRESHES_PER_EPOCH))
    return steps * (P + 4) + conditioned * (Q * M * (M + L) + 4)


def epoch_of(task: dict[str, Any]) -> tuple[float, float]:
    """Seconds and processor seconds of an epoch after the first, in this process."""
    ends: list[tuple[float, float]] = []
    epochs(task, lambda trainer, row: ends.append((row["seconds"], row["cpu_seconds"])))
    wall, cpu = np.median(np.diff(ends, axis=0), axis=0).tolist()
    return wall, cpu


def together(task: dict[str, Any]) -> dict[str, Any]:
    """One process, two that share the work and two that share nothing, in turns; seconds of an epoch, per round.

    Two that share nothing run at the same time, each on half of the rows in half as large batches, so that they do the
    work of two processes and never wait for each other: the least time that two processes can take on this machine.
    """
    world = current_world()
    half = task | {"N": task["N"] // 2, "batch_size": task["batch_size"] // 2}
    found: dict[str, list[tuple[float, float]]] = {"one": [], "two": [], "two apart": []}
    for _ in range(task["rounds"]):
        with alone():
            if world.first:
                found["one"].append(epoch_of(task))
            world.barrier()
            found["two apart"].append(epoch_of(half))
        world.barrier()
        found["two"].append(epoch_of(task))
    wall, cpu = ({name: [pair[k] for pair in pairs] for name, pairs in found.items()} for k in (0, 1))
    return {"seconds": statistics.median(wall["two"]), "rounds": wall, "cpu": cpu, "peak_bytes": peak_memory()}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Fits inside the context are those of one process, although there are others."""
    with contextlib.ExitStack() as patches:
        for module in (base, measuring):
            patches.enter_context(mock.patch.object(module, "current_world", lambda: ALONE))
        yield


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
    work = {"train": train, "gp_term": gp_term, "together": together, "count": count}[sys.argv[1]]
    found = work(json.loads(sys.argv[2]))
    if first_process():
        print(json.dumps(found))


if __name__ == "__main__":
    main()
