"""The GP term with its gradient: what each trick is worth, and the paper's formulas as they are printed (_paper.py).

    python benchmarks/gp_term.py [--quick] [--threads 1]

All in one interleaved run: gppvae as it is; with the term left to autograd instead of its closed-form derivative; with
whole features summed instead of a split layout; and the paper's formulas in two precisions. The term alone, given the
sums, is timed both ways too, and so is the prediction of 64 rows from sums that carry a gradient. Writes
results/gp_term.json; --quick writes into build/quick only.

One derivative of prior/closed_form.py, PosteriorAtRows, is not timed: it is an estimator, not a trick. Rows
outside the batch are known by their sums only, so autograd has no expression that it could be compared with.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _common import Timing, extra_memory, in_fresh_process, interleave, save
from _gp_problem import Nll, Predict, Problem, assembled, autograd_nll, autograd_prediction, by_paper, by_statistics
from torch import Tensor

from gppvae.inference.fixed_latents import CHUNK_ROWS
from gppvae.prior.closed_form import ConditionedAtRows
from gppvae.prior.lowrank import gp_nll


@dataclass(frozen=True)
class Size:
    """N, M, Q and L, the rows that are summed at once, and the least speed-up over the paper's formulas.

    Those take all rows at once, so there is no target where sums are over small batches.
    """

    shape: tuple[int, int, int, int]
    batch_size: int
    least: float | None = None


# Rotated digits and faces with their latents at hand and in the batches of a fit, and many rows.
SIZES = {
    "digits": Size((4050, 8, 16, 16), CHUNK_ROWS, 1.0),
    "digits, in batches": Size((4050, 8, 16, 16), 128),
    "faces": Size((3868, 64, 9, 256), CHUNK_ROWS, 4.0),
    "faces, in batches": Size((3868, 64, 9, 256), 32),
    "rows": Size((100_000, 8, 16, 16), CHUNK_ROWS, 1.0),
}
FORMS = ("sampled", "expected")
PREDICTED_ROWS = 64
METHODS = ("gppvae", "autograd", "whole features", "paper64", "paper32")
WITH_MEMORY = ("gppvae", "paper64")
MEMORY_TARGET = 0.2  # largest share of the extra memory of the paper's formulas, at the most rows


def runner(method: str, size: Size, form: str, seed: int) -> tuple[Problem, Callable[[], object]]:
    """A problem and what computes its gradients; the numbers are the same for every method."""
    expected = form == "expected"
    problem = Problem(size.shape, size.batch_size, seed, split=method != "whole features")
    if method in ("paper64", "paper32"):
        dtype = torch.float64 if method == "paper64" else torch.float32
        return problem, lambda: by_paper(problem, expected, dtype)
    nll = autograd_nll if method == "autograd" else gp_nll
    return problem, lambda: by_statistics(problem, expected, nll)


def terms(size: Size, form: str, seed: int) -> dict[str, Callable[[], object]]:
    """The term with its gradient, given the sums over all rows: in closed form, and by autograd."""
    full = assembled(Problem(size.shape, size.batch_size, seed), form == "expected")
    leaves = [x for x in (full.S, full.R, full.T, full.sums) if x is not None]

    def run(nll: Nll) -> Callable[[], object]:
        return lambda: torch.autograd.grad(nll(full), leaves)

    return {"term": run(gp_nll), "term by autograd": run(autograd_nll)}


def predictions(size: Size, seed: int) -> dict[str, Callable[[], object]]:
    """Rows predicted from sums, with the gradient of all three: in closed form, and by autograd."""
    problem = Problem(size.shape, size.batch_size, seed)
    full = assembled(problem, expected=False)
    features = problem.kernel.features(problem.rows[0][:PREDICTED_ROWS]).detach().requires_grad_()
    leaves = [features, full.S, full.R]

    def run(predict: Predict) -> Callable[[], object]:
        return lambda: torch.autograd.grad(sum(x.sum() for x in predict(features, full.S, full.R)), leaves)

    return {"prediction": run(ConditionedAtRows.apply), "prediction by autograd": run(autograd_prediction)}


def differences(size: Size, form: str, seed: int) -> dict[str, float]:
    """Largest relative difference of any gradient to that of the paper's formulas in float64."""
    found: dict[str, dict[str, Tensor]] = {}
    for method in METHODS:
        problem, run = runner(method, size, form, seed)
        run()
        found[method] = problem.gradients()
    truth = found.pop("paper64")

    def worst(gradients: dict[str, Tensor]) -> float:
        assert gradients.keys() == truth.keys()
        return max(float((gradients[name] - g).abs().max() / g.abs().max()) for name, g in truth.items())

    return {method: worst(gradients) for method, gradients in found.items()}


def memory_of(size: str, form: str, method: str, seed: int) -> None:
    """In a process of its own: print the extra bytes at the peak of one gradient."""
    runner(method, Size((50, 2, 3, 2), 50), form, seed)[1]()  # code and libraries are loaded before
    _, run = runner(method, SIZES[size], form, seed)
    print(json.dumps(extra_memory(run)))


def measure(name: str, form: str, rounds: int, seed: int) -> dict[str, Any]:
    size = SIZES[name]
    problems = {method: runner(method, size, form, seed) for method in METHODS}
    runs: dict[str, Callable[[], object]] = {method: run for method, (_, run) in problems.items()}
    times = interleave(runs | terms(size, form, seed) | predictions(size, seed), rounds)
    extra = {
        method: in_fresh_process(__file__, "--memory", name, form, method, "--seed", str(seed))
        for method in WITH_MEMORY
    }
    speed_up = ratios(times)
    return {
        "size": name,
        "form": form,
        "shape": dict(zip("NMQL", size.shape, strict=True)),
        "batch_size": size.batch_size,
        "split": problems["gppvae"][0].prior.groups[0].layout.split,
        "methods": {method: timing.record() for method, timing in times.items()},
        "speed_up": speed_up,
        "speed_target": size.least,
        "met": size.least is None or speed_up["paper64"] >= size.least,
        "extra_bytes": extra,
        "memory_share": extra["gppvae"] / max(extra["paper64"], 1.0),
        "gradient_difference": differences(size, form, seed),
    }


def ratios(times: dict[str, Timing]) -> dict[str, float]:
    """How many times longer each method takes than what gppvae does."""
    found = {method: times[method].ratio_to(times["gppvae"]) for method in METHODS[1:]}
    for name in ("term", "prediction"):
        found[f"{name} by autograd"] = times[f"{name} by autograd"].ratio_to(times[name])
    return found


def show(case: dict[str, Any]) -> None:
    shape = ", ".join(f"{key} {value:,}" for key, value in case["shape"].items())
    print(f"\n{case['size']} ({shape}; {case['batch_size']} rows at once, split by {case['split']}), {case['form']}")
    for method, row in case["methods"].items():
        note = f"   x {case['speed_up'][method]:.2f}" if method in case["speed_up"] else ""
        print(f"  {method:<18} {row['seconds'] * 1e3:9.1f} ms{note}")
    print(f"  extra memory {case['extra_bytes']['gppvae'] / 2**20:.1f} MiB, {case['memory_share']:.2f} of paper64's")
    found = {method: f"{value:.1e}" for method, value in case["gradient_difference"].items()}
    print("  gradient difference to paper64:", found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 rounds instead of 11")
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
            cases.append(measure(size, form, 2 if args.quick else 11, args.seed))
            show(cases[-1])
    setting = {"threads": torch.get_num_threads(), "memory_target": MEMORY_TARGET}
    content = {"setting": setting, "cases": cases}
    print(f"\nwritten to {save('gp_term', content, args.seed, started, args.quick)}")


if __name__ == "__main__":
    main()
