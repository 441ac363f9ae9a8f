"""Fit every task, ask its questions, and keep the numbers in one file, run by run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gppvae.bench.scores import measured
from gppvae.bench.task import HIGHER, Task
from gppvae.bench.tasks import Load
from gppvae.estimator.gppvae import GPPVAE
from gppvae.report.record import read_results, write_results
from gppvae.training.folder import provenance

Say = Callable[[str], None]


def run_suite(
    suite: str, loaders: Mapping[str, Load], seeds: Sequence[int], data: Path, out: Path, progress: bool, say: Say
) -> dict[str, Any]:
    """Run tasks and seeds that `out` does not hold yet; the file is written after each.

    A run is kept where its task, seed, commit and versions are the same and the tree was clean; any other is replaced.
    Another system that could not be run before is run now, if it can be.

    Args:
        suite: name of the command.  loaders: by name.  data: folder of the data sets.  out: results file.
        say: told each number as it comes.

    Returns:
        The file's content.
    """
    about = provenance()
    content = _read(out, suite)

    def keep(key: str, made: dict[str, Any]) -> None:
        nonlocal content
        content = _read(out, suite)  # another process may have added runs meanwhile
        content["runs"][key] = made
        write_results(out, content, about)

    for name, load in loaders.items():
        task = load(data)
        for seed in seeds:
            key = f"{name} seed {seed}"
            made = content["runs"].get(key)
            if _same(made, task, about):
                say(f"{key}: already in {out}")
            else:
                made = run(task, seed, progress) | {"beside": _answered(made, task), "about": about}
                keep(key, made)  # before others are run, which may fail
                for question, found in made["questions"].items():
                    say(_line(question, seed, found, made["seconds"]))
            beside = _beside(task, seed, made["beside"], about)
            if beside != made["beside"]:
                keep(key, made | {"beside": beside})
                for line in _lines_beside(seed, beside):
                    say(line)
    return content


def run(task: Task, seed: int, progress: bool = False) -> dict[str, Any]:
    """Fit with the kernel and what the task says beside it, and measure."""
    wall, cpu = time.perf_counter(), time.process_time()
    said = dict(task.settings) | ({} if task.missing == "error" else {"missing": task.missing})
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


def _answered(old: dict[str, Any] | None, task: Task) -> dict[str, Any]:
    """What other systems answered to the same task before: no commit of ours changes it."""
    if old is None or old["facts"] != task.facts():
        return {}
    before = old["about"]
    return {name: {"about": before} | found for name, found in old["beside"].items() if "values" in found}


def _beside(task: Task, seed: int, before: Mapping[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """What other systems answer, with where and when; those that answered before are not asked again."""
    return {
        name: before[name] if "values" in before.get(name, {}) else peer(seed).to_json() | {"about": about}
        for name, peer in task.beside.items()
    }


def _read(out: Path, suite: str) -> dict[str, Any]:
    """The content of the results file, or that of an empty one."""
    if not out.is_file():
        return {"experiment": suite, "runs": {}}
    content = read_results(out)
    if content.get("experiment") != suite or not isinstance(content.get("runs"), dict):
        raise ValueError(f"expected results of `gppvae bench {suite}` in {out}, got others; choose another --out")
    for run in content["runs"].values():
        run.setdefault("beside", {})
    return content


def _same(old: dict[str, Any] | None, task: Task, about: dict[str, Any]) -> bool:
    """Whether an earlier run would be repeated exactly."""
    if old is None or old["facts"] != task.facts():
        return False
    before = old["about"]
    return bool(
        before["clean"] and about["clean"] and all(before[name] == about[name] for name in ("commit", "versions"))
    )


def _line(question: str, seed: int, found: dict[str, Any], seconds: float) -> str:
    others = ", ".join(f"{name} {value:.4g}" for name, value in found["simple"].items())
    most = "at least" if found["kind"] in HIGHER else "at most"
    goal = "" if found["limit"] is None else f"; {most} {found['limit']:.4g} wanted"
    return f"{question}, seed {seed}: {found['kind']} {found['error']:.4g} ({others}{goal}), {seconds:.0f} s"


def _lines_beside(seed: int, beside: Mapping[str, Any]) -> Iterator[str]:
    for name, found in beside.items():
        if "not_run" in found:
            yield f"{name}, seed {seed}: {found['not_run']}"
        for question, value in found.get("values", {}).items():
            yield f"{question}, seed {seed}: {name} {value:.4g}, {found['seconds']:.0f} s"
