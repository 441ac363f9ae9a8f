"""A fitted model as text: its settings, what its kernel learned, final metrics.

Nothing here imports PyTorch, so that `gppvae info` starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gppvae.data.header import ADVICE, checked_content, read_header, read_object
from gppvae.data.run_files import CONFIG, finished_model

if TYPE_CHECKING:
    from gppvae.estimator import GPPVAE

REPORT = "report.html"


@dataclass(frozen=True)
class Saved:
    """The metadata of a model file, under the names of a loaded model's attributes.

    Attributes:
        kind: "gppvae" or "vae".  shape_: of a sample.  sample_names_: of its values, or None.
        kernel: as text.  learned, columns: (name, text).  resolved_, history_, fit_seconds_, skipped_steps_, seed.
    """

    kind: str
    shape_: tuple[int, ...]
    sample_names_: list[str] | None
    kernel: str
    learned: list[tuple[str, str]]
    columns: list[tuple[str, str]]
    resolved_: dict[str, Any]
    history_: list[dict[str, Any]]
    fit_seconds_: float
    skipped_steps_: int
    seed: int


def read_saved(path: Path) -> Saved:
    """The metadata in the model file of a folder, after verification of the checksum."""
    file = finished_model(path)
    meta = read_header(file)
    with checked_content(file):
        no_kernel: dict[str, Any] = {"kernel": "none", "learned": [], "columns": []}
        described = no_kernel if meta["kind"] == "vae" else meta["described"]
        pairs = {name: [(str(key), str(value)) for key, value in described[name]] for name in ("learned", "columns")}
        return Saved(
            str(meta["kind"]), tuple(meta["shape"]), meta["names"], str(described["kernel"]), pairs["learned"],
            pairs["columns"], meta["trained"], meta["history"], float(meta["fit_seconds"]),
            int(meta["skipped_steps"]), int(meta["given"]["seed"]),
        )  # fmt: skip


def final_metrics(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, dict[str, float]]]:
    """(phase, "epoch 40", metrics) at the end of each phase; validation metrics are those of its last validation."""
    ends: dict[str, tuple[str, dict[str, float]]] = {}
    for row in history:
        values = ends.get(row["phase"], ("", {}))[1]
        new = {name: float(row[name]) for name in row if name not in ("phase", "epoch", "seconds", "cpu_seconds")}
        ends[row["phase"]] = (f"epoch {row['epoch']}", values | new)
    return [(phase, epoch, values) for phase, (epoch, values) in ends.items()]


def phase_rows(model: GPPVAE | Saved) -> list[tuple[str, str]]:
    """(name, description) of the phases that were trained."""
    rows = []
    for phase in model.resolved_["phases"]:
        rates = ", ".join(f"{group} {rate:g}" for group, rate in phase["lr"].items())
        words = [f"{phase['inference']}, {phase['epochs']} epochs", f"rates {rates} ({phase['decay']})"]
        words += [f"{name} {phase[name]:g}" for name in ("warmup", "weight_decay", "average") if phase[name]]
        words += [f"{name} {value}" for name, value in phase["options"].items()]
        rows.append((phase["name"], ", ".join(words)))
    return rows


def run_config(folder: Path) -> dict[str, Any]:
    """config.json of a run folder; empty if the folder only has a saved model."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    config = read_object(path.read_bytes(), path)
    if not all(isinstance(config.get(name, {}), dict) for name in ("settings", "about")):
        raise ValueError(f"expected the settings of a run in {path}, got something else; {ADVICE}")
    return config


def run_facts(folder: Path, model: GPPVAE | Saved) -> dict[str, object]:
    """Facts for reproducing a run: seed, versions, commit, machine, time."""
    about = run_config(folder).get("about", {})
    facts: dict[str, object] = {
        "seed": model.seed,
        "training time": f"{model.fit_seconds_:.0f} s",
        "steps skipped": model.skipped_steps_,
    }
    versions = about.get("versions", {})
    facts |= {name: versions[name] for name in ("gppvae", "torch", "gpytorch", "numpy") if name in versions}
    return facts | {name: about[name] for name in ("python", "commit", "machine") if name in about}
