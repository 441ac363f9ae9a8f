"""The GP term with its gradient, beside the paper's formulas coded as they are printed (_paper.py).

    python benchmarks/gp_term.py [--quick] [--threads 1]

Gradients are those of the object vectors X, the view factor W, the encoder's outputs and alpha. Writes
results/gp_term.json.
"""

# ruff: noqa: N806 (the letters of the paper are the names here)
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _common import extra_memory, in_fresh_process, interleave, save
from _paper import coefficients
from torch import Tensor, nn

from gppvae.data.table import Rows, Table
from gppvae.inference.base import back_propagate, known_of_rows
from gppvae.inference.fixed_latents import CHUNK_ROWS
from gppvae.kernels.base import Kernel
from gppvae.kernels.parse import parse_kernel
from gppvae.prior.lowrank import gp_nll
from gppvae.prior.statistics import Statistics, statistics

# (N, M, Q, L): rotated digits, faces, and many rows.
SIZES = {"digits": (4050, 8, 16, 16), "faces": (3868, 64, 9, 256), "rows": (100_000, 8, 16, 16)}
FORMS = ("sampled", "expected")
METHODS = ("gppvae", "paper64", "paper32")
SPEED_TARGETS = {"digits": 1.0, "faces": 4.0, "rows": 1.0}  # least speed-up over the paper's formulas
MEMORY_TARGET = 0.2  # largest share of their extra memory, at the most rows


@dataclass
class Problem:
    """Inputs as a training step has them: a kernel, coded rows, and encoder outputs batch by batch."""

    kernel: Kernel
    split: str
    rows: list[Rows]
    means: list[Tensor]
    variances: list[Tensor]
    log_alpha: Tensor

    def leaves(self) -> list[Tensor]:
        return [*self.kernel.parameters(), *self.means, *self.variances, self.log_alpha]

    def clear(self) -> None:
        for leaf in self.leaves():
            leaf.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Gradients by name; those that a form does not have are left out."""
        named = {name: parameter.grad for name, parameter in self.kernel.named_parameters()}
        named |= {"alpha": self.log_alpha.grad}
        for name, parts in (("mean", self.means), ("var", self.variances)):
            if parts[0].grad is not None:
                named[name] = torch.cat([part.grad for part in parts if part.grad is not None])
        return {name: grad.double() for name, grad in named.items() if grad is not None}


def make_problem(shape: tuple[int, int, int, int], seed: int) -> Problem:
    n, m, q, n_latents = shape
    draw = np.random.default_rng(seed)
    cells = np.sort(draw.permutation(-(-n // q) * q)[:n])
    table = Table({"object": cells // q, "view": draw.permutation(n) % q})
    kernel = parse_kernel(f"Learned(object, {m}) * FreeForm(view)")
    generator = torch.Generator().manual_seed(seed)
    kernel.bind(table, generator)
    rows = kernel.code(table)
    chunks = [slice(start, min(start + CHUNK_ROWS, n)) for start in range(0, n, CHUNK_ROWS)]
    shapes = [(chunk.stop - chunk.start, n_latents) for chunk in chunks]
    means = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    variances = [torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    log_alpha = nn.Parameter(torch.tensor(0.1, dtype=torch.float64).log())
    return Problem(kernel, "view (id)", [rows[chunk] for chunk in chunks], means, variances, log_alpha)


def run_gppvae(problem: Problem, expected: bool) -> None:
    """Two sweeps over grouped statistics, as exact inference takes them."""
    problem.clear()

    def arguments(number: int) -> tuple[Any, Tensor, Tensor | None, Tensor]:
        var = problem.variances[number] if expected else None
        features = problem.kernel.features(problem.rows[number], problem.split)
        return features, problem.means[number], var, problem.log_alpha.exp()

    with torch.no_grad():
        totals = statistics(*arguments(0))
        for number in range(1, len(problem.rows)):
            totals = totals.plus(statistics(*arguments(number)))
    outer, sums = totals.outer.requires_grad_(), totals.sums.requires_grad_()
    features = problem.kernel.features(problem.rows[0][:1], problem.split)
    gp_nll(Statistics(outer, sums, totals.n_latents), features.tables, features.sizes).backward()
    assert outer.grad is not None and sums.grad is not None
    pull = Statistics(outer.grad, sums.grad, totals.n_latents)
    for number in range(len(problem.rows)):
        back_propagate(*known_of_rows(pull, arguments(number)))


def run_paper(problem: Problem, expected: bool, dtype: torch.dtype) -> None:
    """Coefficients of all rows from a dense V, then the first-order expansion batch by batch."""
    problem.clear()
    with torch.no_grad():
        V = torch.cat([problem.kernel.features(rows).dense().to(dtype) for rows in problem.rows])
        Z = torch.cat(problem.means).to(dtype)
        var = torch.cat(problem.variances).to(dtype) if expected else None
        found = coefficients(V, Z, var, problem.log_alpha.exp().to(dtype))
    start = 0
    for rows, mean, s2 in zip(problem.rows, problem.means, problem.variances, strict=True):
        chunk = slice(start, start + len(rows))
        start += len(rows)
        V_b = problem.kernel.features(rows).dense().to(dtype)
        loss = (found.B[chunk] * V_b).sum() + (found.a[chunk] * mean.to(dtype)).sum()
        if found.s is not None:
            loss = loss + (found.s[chunk] * s2.to(dtype)).sum()
        loss.backward()
    (found.c * problem.log_alpha.exp()).backward()


def runner(method: str, problem: Problem, form: str) -> Callable[[], None]:
    expected = form == "expected"
    if method == "gppvae":
        return lambda: run_gppvae(problem, expected)
    return lambda: run_paper(problem, expected, torch.float64 if method == "paper64" else torch.float32)


def differences(problem: Problem, form: str) -> dict[str, float]:
    """Largest relative difference of any gradient to that of the paper's formulas in float64."""
    found = {}
    for method in METHODS:
        runner(method, problem, form)()
        found[method] = problem.gradients()
    truth = found.pop("paper64")

    def worst(gradients: dict[str, Tensor]) -> float:
        assert gradients.keys() == truth.keys()
        return max(float((gradients[name] - g).abs().max() / g.abs().max()) for name, g in truth.items())

    return {method: worst(gradients) for method, gradients in found.items()}


def memory_of(size: str, form: str, method: str, seed: int) -> None:
    """In a process of its own: print the extra bytes at the peak of one gradient."""
    runner(method, make_problem((50, 2, 3, 2), seed), form)()  # code and libraries are loaded before
    problem = make_problem(SIZES[size], seed)
    print(json.dumps(extra_memory(runner(method, problem, form))))


def measure(size: str, form: str, rounds: int, seed: int, threads: int) -> dict[str, Any]:
    problem = make_problem(SIZES[size], seed)
    times = interleave({method: runner(method, problem, form) for method in METHODS}, rounds)
    methods: dict[str, dict[str, Any]] = {}
    for method, timing in times.items():
        extra = in_fresh_process(__file__, "--memory", size, form, method, "--seed", str(seed))
        methods[method] = timing.record() | {"extra_bytes": extra}
    ours = times["gppvae"].seconds
    return {
        "size": size,
        "form": form,
        "shape": dict(zip("NMQL", SIZES[size], strict=True)),
        "threads": threads,
        "methods": methods,
        "speed_up": {method: times[method].seconds / ours for method in METHODS[1:]},
        "speed_target": SPEED_TARGETS[size],
        "memory_share": {
            method: methods["gppvae"]["extra_bytes"] / max(methods[method]["extra_bytes"], 1.0)
            for method in METHODS[1:]
        },
        "gradient_difference": differences(problem, form),
    }


def show(case: dict[str, Any]) -> None:
    shape = ", ".join(f"{key} {value:,}" for key, value in case["shape"].items())
    print(f"\n{case['size']} ({shape}), {case['form']}, {case['threads']} thread(s)")
    for method, row in case["methods"].items():
        note = ""
        if method != "gppvae":
            note = f"   x {case['speed_up'][method]:.2f}   memory share {case['memory_share'][method]:.2f}"
        print(f"  {method:<8} {row['seconds'] * 1e3:9.1f} ms {row['extra_bytes'] / 2**20:8.1f} MiB{note}")
    print("  gradient difference to paper64:", {k: f"{v:.1e}" for k, v in case["gradient_difference"].items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 11")
    parser.add_argument("--threads", type=int, help="default: torch's own number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", nargs=3, metavar=("SIZE", "FORM", "METHOD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.memory:
        memory_of(*args.memory, args.seed)
        return
    started = time.perf_counter()
    cases = []
    for size in SIZES:
        for form in FORMS:
            cases.append(measure(size, form, 3 if args.quick else 11, args.seed, torch.get_num_threads()))
            show(cases[-1])
    setting = {"chunk_rows": CHUNK_ROWS, "memory_target": MEMORY_TARGET}
    print(f"\nwritten to {save('gp_term', {'setting': setting, 'cases': cases}, args.seed, started)}")


if __name__ == "__main__":
    main()
