"""A fitted model in words: its settings, what its kernel learned, how its training ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gppvae.estimator import GPPVAE
from gppvae.inference import INFERENCES
from gppvae.kernels import IdLeaf, InducingLeaf, Leaf, Learned, Scale
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.training.folder import CONFIG

REPORT = "report.html"
MAX_NUMBERS = 4  # of one parameter of a kernel, to be shown


def kernel_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(part of the kernel, what it learned), left to right, group by group, each followed by its latent noise."""
    rows, several = [], len(model.prior_.groups) > 1
    for number, group in enumerate(model.prior_.groups):
        of = f"group {number + 1} ({group.n_latents} latents): " if several else ""
        if group.kernel is None:
            rows.append((f"{of}no kernel", "what no column explains, variance 1"))
            continue
        parts = [part for part in group.kernel.modules() if isinstance(part, (Leaf, Scale))]
        rows += [(of + _name(part), _learned(part) + kernel_label(model, part)) for part in parts]
        rows.append((f"{of}latent noise", f"variance {float(group.alpha.detach()):.4g}{noise_label(model)}"))
    return rows


def noise_label(model: GPPVAE) -> str:
    """What is to be said of the latent noise unless it was learned: an inference may keep it, or see nothing of it."""
    trained = [phase["inference"] for phase in model.resolved_["phases"] if phase["lr"].get("noise", 0.0) > 0]
    if not trained:
        return " (fixed, not learned)"
    blind = [name for name in trained if name in INFERENCES and not INFERENCES[name].identifies_noise]
    return " (not identified by this inference)" if len(blind) == len(trained) else ""


def noise_learned(model: GPPVAE) -> bool:
    """Whether the latent noise says something about the data, so that shares of variance may be made of it."""
    return not noise_label(model)


def kernel_label(model: GPPVAE, part: Leaf | Scale) -> str:
    """What is to be said of a part of the kernel that has numbers of its own, unless they were learned."""
    own = [parameter for parameter in part.parameters(recurse=isinstance(part, Leaf)) if parameter.numel()]
    if not own:
        return ""
    trained = any(phase["lr"].get("prior", 0.0) > 0 for phase in model.resolved_["phases"])
    return "" if trained and any(parameter.requires_grad for parameter in own) else " (fixed, not learned)"


def kernel_text(model: GPPVAE) -> str:
    """The kernel as written; groups of latents one after the other."""
    groups = model.prior_.groups
    if len(groups) == 1 and groups[0].kernel is not None:
        return groups[0].kernel.text()
    return "; ".join(f"{group.n_latents} latents: {group.kernel or 'no kernel'}" for group in groups)


def _name(part: Leaf | Scale) -> str:
    return part.text() if isinstance(part, Leaf) else f"factor before {part.kernel.text()}"


def _learned(part: Leaf | Scale) -> str:
    if isinstance(part, Scale):
        return f"{float(part.value.detach()):.4g}"
    if isinstance(part, Learned):
        size = float(part.vectors().detach().square().sum(1).mean())
        return f"{len(part.levels)} ids, vectors of length {part.dim}, mean variance {size:.4g}"
    if isinstance(part, StationaryLeaf):
        words = [f"length scale {_numbers(part.base.lengthscale)}"]
        words += [f"alpha {_numbers(part.base.alpha)}"] if hasattr(part.base, "alpha") else []
        return ", ".join([*words, f"{part.rank} {'functions' if part.series else 'inducing points'}"])
    words = [f"{len(part.levels)} levels"] if isinstance(part, IdLeaf) else []
    # Few parameters are shown as the class names them; a table of many says nothing here.
    words += [f"{name} {_numbers(p)}" for name, p in part.named_parameters() if p.numel() <= MAX_NUMBERS]
    words += [f"{part.rank} inducing points"] if isinstance(part, InducingLeaf) else []
    return ", ".join(words) or "nothing to learn"


def _numbers(values: Any) -> str:
    return ", ".join(f"{float(value):.4g}" for value in values.detach().flatten())


def column_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(column, what the model knows of it), in the order of the kernel."""
    found: dict[str, str] = {}
    for leaf in model.prior_.leaves():
        if isinstance(leaf, IdLeaf):
            names = ", ".join(leaf.levels[:4]) + (", ..." if len(leaf.levels) > 4 else "")
            found[leaf.column] = f"{len(leaf.levels)} ids ({names})"
        for position, name in enumerate(leaf.columns_read):
            found.setdefault(name, _span(leaf, position))
    return list(found.items())


def _span(leaf: Leaf, position: int) -> str:
    if not isinstance(leaf, InducingLeaf) or leaf.rank == 0:
        return "numbers"
    values = leaf.shown_values[:, position]
    series = isinstance(leaf, StationaryLeaf) and leaf.series is not None
    count = "" if series else f" ({leaf.rank} {'values' if leaf.complete else 'inducing points'})"
    return f"numbers from {float(values.min()):g} to {float(values.max()):g}{count}"


def final_metrics(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, dict[str, float]]]:
    """(phase, "epoch 40", values) at the end of each phase, validation values from its last validation."""
    ends: dict[str, tuple[str, dict[str, float]]] = {}
    for row in history:
        values = ends.get(row["phase"], ("", {}))[1]
        new = {name: float(row[name]) for name in row if name not in ("phase", "epoch", "seconds")}
        ends[row["phase"]] = (f"epoch {row['epoch']}", values | new)
    return [(phase, epoch, values) for phase, (epoch, values) in ends.items()]


def settings_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(name, value) of the settings that were trained with, every open choice filled in."""
    apart = ("kernel", "phases")
    return [(name, str(value)) for name, value in model.resolved_.items() if name not in apart and value is not None]


def phase_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(name, what it did) of the phases that were trained."""
    rows = []
    for phase in model.resolved_["phases"]:
        rates = ", ".join(f"{group} {rate:g}" for group, rate in phase["lr"].items())
        words = [f"{phase['inference']}, {phase['epochs']} epochs", f"rates {rates} ({phase['decay']})"]
        words += [f"{name} {phase[name]:g}" for name in ("warmup", "weight_decay", "average") if phase[name]]
        words += [f"{name} {value}" for name, value in phase["options"].items()]
        rows.append((phase["name"], ", ".join(words)))
    return rows


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
