"""When `Learned(id) * k`, when `Categorical(id) * k`: held-out visits of subjects, by how their courses came about.

    python benchmarks/learned_or_categorical.py [--quick]

Latents are known, no network is trained: kernel parameters (and the vectors of Learned) are fitted by the exact GP
term, and the latents of visits left out are predicted. Courses are mixtures of two patterns that all subjects share,
drawn for each subject by itself, or half of each. Writes results/learned_or_categorical.json; --quick writes into
build/quick only.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from _common import save

from gppvae.data.table import Table
from gppvae.kernels import parse_kernel
from gppvae.prior.latent_prior import LatentPrior

KERNELS = {
    "Learned": "1.0 * RBF(age) + 1.0 * Learned(id, 2) * RBF(age)",
    "Categorical": "1.0 * RBF(age) + 1.0 * Categorical(id) * RBF(age)",
    "both": "1.0 * RBF(age) + 1.0 * Learned(id, 2) * RBF(age) + 1.0 * Categorical(id) * RBF(age)",
    "no subject": "1.0 * RBF(age)",
}
COURSES = ("shared patterns", "each its own", "half of each")
VISITS = (2, 4, 10)
SUBJECTS, LATENTS, NOISE, LENGTH = 60, 6, 0.05, 12.0
AGES = np.linspace(0.0, 40.0, 12)


def courses(kind: str, draw: np.random.Generator) -> np.ndarray:
    """Latents of all subjects at all ages, (P, A, L), with variance about one for what is the subject's."""
    root = np.linalg.cholesky(np.exp(-0.5 * ((AGES[:, None] - AGES) / LENGTH) ** 2) + 1e-8 * np.eye(len(AGES)))
    patterns = np.einsum("ab,mbl->mal", root, draw.normal(size=(2, len(AGES), LATENTS)))
    shared = np.einsum("pm,mal->pal", draw.normal(size=(SUBJECTS, 2)) / 2**0.5, patterns)
    own = np.einsum("ab,pbl->pal", root, draw.normal(size=(SUBJECTS, len(AGES), LATENTS)))
    common = root @ draw.normal(size=(len(AGES), LATENTS))
    parts = {"shared patterns": shared, "each its own": own, "half of each": (shared + own) / 2**0.5}
    return common + parts[kind]


def error_of(kernel: str, z: np.ndarray, seen: np.ndarray, steps: int, seed: int) -> float:
    """Mean squared error at visits that were left out."""
    subject, visit = np.nonzero(seen)
    table = Table({"id": subject, "age": AGES[visit]})
    prior = LatentPrior([(parse_kernel(kernel), LATENTS)], NOISE)
    prior.bind(table, torch.Generator().manual_seed(seed))
    rows = prior.code(table)
    draw = np.random.default_rng(seed)
    known = torch.from_numpy(z[seen] + NOISE**0.5 * draw.normal(size=z[seen].shape))
    optimizer = torch.optim.Adam(prior.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (prior.nll(prior.statistics(rows, known)) + prior.neg_log_prior()).backward()
        optimizer.step()
    subject, visit = np.nonzero(~seen)
    with torch.no_grad():
        q = prior.posterior(prior.statistics(rows, known))
        found = prior.at(prior.code(Table({"id": subject, "age": AGES[visit]})), q).mean.numpy()
    return float(np.square(found - z[~seen]).mean())


def measure(kind: str, visits: int, steps: int, seeds: int) -> dict[str, Any]:
    errors: dict[str, list[float]] = {name: [] for name in KERNELS}
    for seed in range(seeds):
        draw = np.random.default_rng(seed)
        z = courses(kind, draw)
        seen = np.zeros(z.shape[:2], dtype=bool)
        for row in seen:
            row[draw.permutation(len(row))[:visits]] = True
        for name, kernel in KERNELS.items():
            errors[name].append(error_of(kernel, z, seen, steps, seed))
    return {"courses": kind, "visits": visits, "mse": {name: float(np.mean(found)) for name, found in errors.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten steps, one seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    steps, seeds = (10, 1) if args.quick else (120, 2)
    cases = []
    for kind in COURSES:
        for visits in VISITS:
            cases.append(measure(kind, visits, steps, seeds))
            found = ", ".join(f"{name} {mse:.3f}" for name, mse in cases[-1]["mse"].items())
            print(f"{kind}, {visits} of {len(AGES)} visits seen: {found}", flush=True)
    setting = {"kernels": KERNELS, "subjects": SUBJECTS, "latents": LATENTS, "noise": NOISE, "steps": steps}
    content = {"setting": setting | {"seeds": seeds}, "cases": cases}
    print(f"written to {save('learned_or_categorical', content, 0, started, args.quick)}")


if __name__ == "__main__":
    main()
