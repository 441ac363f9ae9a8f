"""A fitted model in words: its settings, what its kernel learned, how its training ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gppvae.estimator import GPPVAE
from gppvae.kernels.base import Kernel, Leaf, Scale
from gppvae.kernels.columns import IdLeaf, Learned
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.training.folder import CONFIG

REPORT = "report.html"


def kernel_of(model: GPPVAE) -> Kernel:
    """The fitted kernel; a model that is not fitted says so."""
    return model._fitted[0].kernel


def kernel_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(part of the kernel, what it learned), left to right, the latent noise last."""
    rows = [
        (_name(module), _learned(module)) for module in kernel_of(model).modules() if isinstance(module, (Leaf, Scale))
    ]
    return [*rows, ("latent noise", f"variance {float(model._fitted[0].alpha.detach()):.4g}")]


def _name(part: Leaf | Scale) -> str:
    return part.text() if isinstance(part, Leaf) else f"factor before {part.kernel.text()}"


def _learned(part: Leaf | Scale) -> str:
    if isinstance(part, Scale):
        return f"{float(part.value.detach()):.4g}"
    if isinstance(part, Learned):
        size = float(part.vectors().detach().square().sum(1).mean())
        return f"{len(part.levels)} ids, vectors of length {part.dim}, mean variance {size:.4g}"
    if isinstance(part, IdLeaf):
        return f"{len(part.levels)} levels"
    if isinstance(part, StationaryLeaf):
        words = [f"length scale {_numbers(part.base.lengthscale)}"]
        words += [f"alpha {_numbers(part.base.alpha)}"] if hasattr(part.base, "alpha") else []
        return ", ".join([*words, f"{part.rank} {'functions' if part.series else 'anchors'}"])
    return "nothing to learn"


def _numbers(values: Any) -> str:
    return ", ".join(f"{float(value):.4g}" for value in values.detach().flatten())


def column_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(column, what the model knows of it), in the order of the kernel."""
    found: dict[str, str] = {}
    for leaf in kernel_of(model).leaves():
        if isinstance(leaf, IdLeaf):
            names = ", ".join(leaf.levels[:4]) + (", ..." if len(leaf.levels) > 4 else "")
            found[leaf.column] = f"{len(leaf.levels)} ids ({names})"
        for position, name in enumerate(leaf.columns_read):
            found.setdefault(name, _span(leaf, position))
    return list(found.items())


def _span(leaf: Leaf, position: int) -> str:
    if not isinstance(leaf, StationaryLeaf) or leaf.rank == 0:
        return "numbers"
    values = leaf.anchors[:, position]
    count = "" if leaf.series else f" ({leaf.rank} {'values' if leaf.complete else 'anchors'})"
    return f"numbers from {float(values.min()):g} to {float(values.max()):g}{count}"


def final_metrics(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, dict[str, float]]]:
    """(phase, "epoch 40", values) at the end of each phase, validation values from its last validation."""
    ends: dict[str, tuple[str, dict[str, float]]] = {}
    for row in history:
        values = ends.get(row["phase"], ("", {}))[1]
        new = {name: float(row[name]) for name in row if name not in ("phase", "epoch", "seconds")}
        ends[row["phase"]] = (f"epoch {row['epoch']}", values | new)
    return [(phase, epoch, values) for phase, (epoch, values) in ends.items()]


def settings_rows(model: GPPVAE, skip: Iterable[str] = ("kernel", "own_networks")) -> list[tuple[str, str]]:
    """(name, value) of the constructor's arguments."""
    return [(name, str(value)) for name, value in model.settings().items() if name not in skip]


def run_config(folder: Path) -> dict[str, Any]:
    """config.json of a run folder; empty for a model that was only saved there."""
    path = folder / CONFIG
    return json.loads(path.read_text()) if path.is_file() else {}


def run_facts(folder: Path, model: GPPVAE) -> dict[str, object]:
    """What makes a run repeatable: seed, versions, commit, machine, time."""
    about = run_config(folder).get("about", {})
    facts: dict[str, object] = {
        "seed": model.seed,
        "training time": f"{model.fit_seconds_:.0f} s",
        "steps skipped": model.skipped_steps_,
    }
    versions = about.get("versions", {})
    facts |= {name: versions[name] for name in ("gppvae", "torch", "gpytorch", "numpy") if name in versions}
    return facts | {name: about[name] for name in ("python", "commit", "machine") if name in about}
