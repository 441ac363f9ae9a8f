"""Many subjects: the algebra by blocks beside the dense one, and how both and every inference grow with their number.

    python benchmarks/subjects.py [--quick] [--threads 1]

The kernel is a common course, one per sex and one per subject. Dense and by blocks are timed in turn where the dense
algebra is possible: the GP term with its gradient, and conditioning q(B). Then blocks alone up to 10,000 subjects, with
the memory that they take in a process of its own, and a new subject that is learned from five visits (`add_objects`);
then one epoch of every inference with a small network. Both forms give the same value, which is checked. Writes
results/subjects.json; --quick writes into build/quick only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import INFERENCES, Training, extra_memory, in_fresh_process, interleave, save

from gppvae.data.arrays import Samples
from gppvae.data.table import Table
from gppvae.estimator.new_objects import NewSamples, add_objects
from gppvae.kernels import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.remainders import Remainders
from gppvae.models.vae import Autoencoder
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.sites import Sites, SiteSums, with_sites
from gppvae.prior.statistics import Sums

KERNEL = "RBF(age) + Categorical(id) * RBF(age) + Categorical(sex) * RBF(age)"
VISITS, AGES, N_LATENTS = 6, 8, 8
BESIDE_DENSE = (50, 100, 200)
BLOCKS_ALONE = (1_000, 3_000, 10_000)
EPOCHS = (500, 2_000, 8_000)
NEW_VISITS = 5
NO_BLOCKS = 10**12


def table_of(n_subjects: int, seed: int) -> Table:
    draw = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_subjects), VISITS)
    return Table({"id": ids, "sex": ids % 2, "age": draw.integers(0, AGES, len(ids)) * 10.0})


class Problem:
    """The prior of so many subjects, and the sums of latents at all visits."""

    def __init__(self, n_subjects: int, seed: int, blocks: bool = True) -> None:
        table = table_of(n_subjects, seed)
        self.prior = LatentPrior([(parse_kernel(KERNEL), N_LATENTS)])
        self.prior.groups[0].least_in_blocks = 0 if blocks else NO_BLOCKS
        self.prior.bind(table)
        self.rows = self.prior.code(table)
        generator = torch.Generator().manual_seed(seed)
        self.mean = torch.randn(len(self.rows), N_LATENTS, generator=generator, dtype=torch.float64)
        self.var = torch.rand(self.mean.shape, generator=generator, dtype=torch.float64)

    @torch.no_grad()
    def sums(self) -> Sums:
        return [part.whole() for part in self.prior.statistics(self.rows, self.mean, self.var)]

    def term(self) -> float:
        """Sums over all rows, the GP term, and its gradient with respect to the sums."""
        leaves = [part.map(lambda x: x.detach().requires_grad_()) for part in self.sums()]
        value = self.prior.nll(leaves)
        value.backward()
        return value.item()

    def condition(self) -> object:
        with torch.no_grad():
            return self.prior.posterior(self.sums())


class NewSubject:
    """A model of so many subjects with q(B) from sites, that learns one more from a few visits, again and again."""

    def __init__(self, n_subjects: int, seed: int) -> None:
        problem, draw = Problem(n_subjects, seed), np.random.default_rng(seed)
        nets = MLPEncoder((16,), N_LATENTS, (32,)), MLPDecoder((16,), N_LATENTS, (32,))
        self.model = GPPriorVAE(Autoencoder(*nets, Gaussian(0.1)), problem.prior)
        sums = SiteSums(problem.prior, [torch.eye(N_LATENTS, dtype=torch.float64)])
        sums.add(problem.rows, [Sites(problem.var)])
        self.weights, self.remainders = with_sites(problem.prior.before_data(), sums), Remainders()
        visits = {"id": ["new"] * NEW_VISITS, "sex": [0] * NEW_VISITS, "age": np.arange(NEW_VISITS) * 10.0}
        samples = Samples(draw.normal(size=(NEW_VISITS, 16)).astype(np.float32))
        self.new = NewSamples(samples, Table(visits), Gaussian(0.1), Gaussian(0.1), 128)

    def add(self) -> None:
        _, _, self.weights = add_objects((self.model, self.weights), self.new, self.remainders, steps=8)


def beside_dense(n_subjects: int, rounds: int, seed: int) -> dict[str, Any]:
    ours, dense = Problem(n_subjects, seed), Problem(n_subjects, seed, blocks=False)
    difference = abs(ours.term() / dense.term() - 1.0)
    runs: dict[str, Callable[[], object]] = {
        "term": ours.term,
        "dense term": dense.term,
        "posterior": ours.condition,
        "dense posterior": dense.condition,
    }
    times = interleave(runs, rounds)
    return {
        "subjects": n_subjects,
        "features": dense.prior.groups[0].rank,
        "methods": {name: timing.record() for name, timing in times.items()},
        "speed_up": {name: times[f"dense {name}"].ratio_to(times[name]) for name in ("term", "posterior")},
        "difference": difference,
    }


def alone(n_subjects: int, rounds: int, seed: int) -> dict[str, Any]:
    problem, new = Problem(n_subjects, seed), NewSubject(n_subjects, seed)
    times = interleave({"term": problem.term, "posterior": problem.condition, "new": new.add}, rounds)
    return {
        "subjects": n_subjects,
        "rows": len(problem.rows),
        "features": problem.prior.groups[0].rank,
        "methods": {name: timing.record() for name, timing in times.items()},
        "extra_bytes": in_fresh_process(__file__, "--memory", str(n_subjects), "--seed", str(seed)),
    }


def memory_of(n_subjects: int, seed: int) -> None:
    """In a process of its own: print the extra bytes at the peak of one term with its gradient."""
    Problem(20, seed).term()  # code and libraries are loaded before
    print(json.dumps(extra_memory(Problem(n_subjects, seed).term)))


def epochs(sizes: tuple[int, ...], seed: int) -> dict[str, dict[str, float]]:
    """Processor seconds of one epoch of every inference, by the number of subjects."""
    found: dict[str, dict[str, float]] = {name: {} for name in ("vae", *INFERENCES)}
    for n_subjects in sizes:
        table = table_of(n_subjects, seed)
        samples = Samples(np.random.default_rng(seed).normal(size=(len(table), 16)).astype(np.float32))

        def networks() -> tuple[MLPEncoder, MLPDecoder]:
            return MLPEncoder((16,), N_LATENTS, (32,)), MLPDecoder((16,), N_LATENTS, (32,))

        training = Training(samples, table, KERNEL, N_LATENTS, 128, networks)
        for name, by_size in found.items():
            next_epoch = training.epochs(name, seed)
            by_size[str(n_subjects)] = interleave({name: next_epoch}, rounds=1)[name].cpu[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer subjects, one round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=int, metavar="SUBJECTS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        memory_of(args.memory, args.seed)
        return
    started, rounds = time.perf_counter(), 1 if args.quick else 3
    dense = [beside_dense(n, rounds, args.seed) for n in (BESIDE_DENSE[:2] if args.quick else BESIDE_DENSE)]
    for case in dense:
        gains = ", ".join(f"{name} {gain:.1f} times faster" for name, gain in case["speed_up"].items())
        print(f"{case['subjects']} subjects, {case['features']} features: {gains}; differs by {case['difference']:.0e}")
    many = [alone(n, rounds, args.seed) for n in ((500, 1_000) if args.quick else BLOCKS_ALONE)]
    for case in many:
        times = ", ".join(f"{name} {row['cpu_seconds']:.2f} s" for name, row in case["methods"].items())
        print(f"{case['subjects']} subjects: {times}, {case['extra_bytes'] / 2**20:.0f} MiB")
    first, last = many[0], many[-1]
    more = last["subjects"] / first["subjects"]
    growth = {
        name: last["methods"][name]["cpu_seconds"] / first["methods"][name]["cpu_seconds"] / more
        for name in ("term", "posterior", "new")
    } | {"memory": last["extra_bytes"] / first["extra_bytes"] / more}
    print("growth from the fewest to the most subjects, 1 is linear:", {k: round(v, 2) for k, v in growth.items()})
    sizes = (100, 400) if args.quick else EPOCHS
    by_inference = epochs(sizes, args.seed)
    for name, seconds in by_inference.items():
        print(f"  epoch of {name:<10}", ", ".join(f"{n} subjects {value:.2f} s" for n, value in seconds.items()))
    setting = {"kernel": KERNEL, "visits": VISITS, "ages": AGES, "latents": N_LATENTS, "threads": args.threads}
    content = {"setting": setting, "dense": dense, "blocks": many, "growth": growth, "epochs": by_inference}
    print(f"written to {save('subjects', content, args.seed, started, args.quick)}")


if __name__ == "__main__":
    main()
