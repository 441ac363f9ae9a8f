"""Fit every task with nothing but its kernel, ask its questions, and keep the numbers in one file, run by run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gppvae.bench.measure import measured
from gppvae.bench.task import Task
from gppvae.bench.tasks import Load
from gppvae.estimator.gppvae import GPPVAE
from gppvae.report.record import read_results, write_results
from gppvae.training.folder import provenance

EXPERIMENT = "defaults"
Say = Callable[[str], None]


def run_defaults(
    loaders: Mapping[str, Load], seeds: Sequence[int], data: Path, out: Path, progress: bool, say: Say
) -> dict[str, Any]:
    """Run tasks and seeds that `out` does not hold yet; the file is written after each.

    A run is kept where its task, seed, commit and versions are the same and the tree was clean; any other is replaced.

    Args:
        loaders: by name.  data: folder of the data sets.  out: results file.  say: told each number as it comes.

    Returns:
        The file's content.
    """
    about = provenance()
    content = _read(out)
    for name, load in loaders.items():
        task = load(data)
        for seed in seeds:
            if _same(content["runs"].get(f"{name} seed {seed}"), task, about):
                say(f"{name} seed {seed}: already in {out}")
                continue
            made = run(task, seed, progress) | {"about": about}
            content = _read(out)  # another process may have added runs meanwhile
            content["runs"][f"{name} seed {seed}"] = made
            write_results(out, content, about)
            for question, found in made["questions"].items():
                say(_line(question, seed, found, task.error, made["seconds"]))
    return content


def run(task: Task, seed: int, progress: bool = False) -> dict[str, Any]:
    """Fit with the kernel alone and measure; the estimator is told nothing else but what NaN means."""
    wall, cpu = time.perf_counter(), time.process_time()
    said: dict[str, Any] = {} if task.missing == "error" else {"missing": task.missing}
    model = GPPVAE(task.kernel, seed=seed, **said).fit(task.samples, task.table, progress=progress)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    compared = model.comparison_
    return {
        "task": task.name,
        "seed": seed,
        "facts": task.facts(),
        "questions": {question.name: measured(model, question, task.error) for question in task.questions},
        "held_out": None if compared is None else compared.to_json(),
        "learned": task.learned(model),
        "settings": model.resolved_,
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "threads": torch.get_num_threads(),
    }


def _read(out: Path) -> dict[str, Any]:
    """The content of the results file, or that of an empty one."""
    if not out.is_file():
        return {"experiment": EXPERIMENT, "runs": {}}
    content = read_results(out)
    if content.get("experiment") != EXPERIMENT or not isinstance(content.get("runs"), dict):
        raise ValueError(f"expected results of `gppvae bench defaults` in {out}, got others; choose another --out")
    return content


def _same(old: dict[str, Any] | None, task: Task, about: dict[str, Any]) -> bool:
    """Whether an earlier run would be repeated exactly."""
    if old is None or old["facts"] != task.facts():
        return False
    before = old["about"]
    return bool(
        before["clean"] and about["clean"] and all(before[name] == about[name] for name in ("commit", "versions"))
    )


def _line(question: str, seed: int, found: dict[str, Any], kind: str, seconds: float) -> str:
    others = ", ".join(f"{name} {value:.4g}" for name, value in found["simple"].items())
    goal = "" if found["limit"] is None else f"; at most {found['limit']:.4g} wanted"
    return f"{question}, seed {seed}: {kind} {found['error']:.4g} ({others}{goal}), {seconds:.0f} s"
