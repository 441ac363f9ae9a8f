"""The benchmarks by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gppvae.bench.coil import TARGETS, interpolation, new_objects
from gppvae.bench.digits import rotated_digits
from gppvae.bench.dlpfc import dlpfc
from gppvae.bench.etth1 import etth1
from gppvae.bench.faces import SPLITS, heads, photographs
from gppvae.bench.field import field
from gppvae.bench.health import health, many_subjects
from gppvae.bench.jura import jura
from gppvae.bench.physionet import physionet
from gppvae.bench.task import Task

Load = Callable[[Path], Task]
JURA_TARGET = 0.39  # among other systems; stricter than that of the defaults

DEFAULTS: dict[str, Load] = {
    **{f"coil20-{spacing}": partial(interpolation, spacing=spacing) for spacing in TARGETS},
    "coil20-new": new_objects,
    "digits": rotated_digits,
    **{f"faces-{split}": partial(photographs, split=split) for split in SPLITS},
    "heads": heads,
    "health": health,
    "jura": jura,
    "field": field,
}
FIELD: dict[str, Load] = {
    "health": many_subjects,
    "etth1": etth1,
    "physionet": physionet,
    "jura": partial(jura, target=JURA_TARGET),
    "dlpfc": dlpfc,
}
COMPARED = ("coil20-40", "heads", "jura", "field")  # tasks of the defaults that every inference is run on
INFERENCES = ("auto", "leave_out", "global", "minibatch", "posterior", "exact")


def told(load: Load, inference: str, data: Path) -> Task:
    """A task whose fit is told the inference."""
    return replace(load(data), settings={"inference": inference}, why="what is compared")


INFERENCE: dict[str, Load] = {
    f"{name}-{inference}": partial(told, DEFAULTS[name], inference) for name in COMPARED for inference in INFERENCES
}
SUITES = {"defaults": DEFAULTS, "field": FIELD, "inference": INFERENCE}  # by command


def chosen_tasks(suite: str, names: Sequence[str]) -> dict[str, Load]:
    """Loaders of the named tasks, in the order of the table; all without names."""
    tasks = SUITES[suite]
    unknown = [name for name in names if name not in tasks]
    if unknown:
        raise ValueError(f"a task must be one of {', '.join(tasks)}, got {unknown[0]!r}; without --task all are run")
    return {name: load for name, load in tasks.items() if not names or name in names}


def data_folder(folder: Path | None) -> Path:
    """The folder of the data sets: the one given, or $GPPVAE_DATA."""
    named = folder if folder is not None else os.environ.get("GPPVAE_DATA")
    if named is None:
        raise ValueError("expected the folder of the data sets, got none; give --data or set GPPVAE_DATA")
    if not Path(named).is_dir():
        raise ValueError(f"expected the folder of the data sets at {named}, found none; give --data or set GPPVAE_DATA")
    return Path(named)
