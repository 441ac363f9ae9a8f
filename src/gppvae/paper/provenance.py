"""Where a number comes from: commit, settings and time of every fit behind it. Tables refuse numbers without that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gppvae.training.checkpoint import read_tensors
from gppvae.training.folder import METRICS, MODEL, read_config

FIELDS = ("commits", "clean", "machines", "settings", "wall_seconds", "cpu_seconds")


def fit_record(folder: Path) -> dict[str, Any]:
    """What the run folder of a finished fit says of its training: where and how, not when results were gathered.

    A fit that was stopped and went on at another commit has both.
    """
    config = read_config(folder)
    began, ended = config["about"], read_tensors(folder / MODEL)[1]["about"]
    last = json.loads((folder / METRICS).read_text("utf-8").splitlines()[-1])
    return {
        "commits": sorted({began["commit"], ended["commit"]}),
        "clean": began["clean"] is True and ended["clean"] is True,
        "machine": began["machine"],
        "settings": config["settings"]["trained"],
        "wall_seconds": last["seconds"],
        "cpu_seconds": last["cpu_seconds"],
    }


def over_seeds(fits: Sequence[Sequence[Mapping[str, Any]] | None]) -> dict[str, Any] | None:
    """Records of the fits behind one row, one list per seed, as one; None where a seed has none.

    Settings are those of the first seed, one entry per fit; seconds are summed over the fits of a seed.
    """
    if not fits or not all(fits):
        return None
    all_fits = [fit for own in fits for fit in own or ()]
    return {
        "commits": sorted({commit for fit in all_fits for commit in fit["commits"]}),
        "clean": all(fit["clean"] for fit in all_fits),
        "machines": sorted({fit["machine"] for fit in all_fits}),
        "settings": [fit["settings"] for fit in fits[0] or ()],
        "wall_seconds": [round(sum(fit["wall_seconds"] for fit in own or ()), 3) for own in fits],
        "cpu_seconds": [round(sum(fit["cpu_seconds"] for fit in own or ()), 3) for own in fits],
    }


def why_stale(trained: Mapping[str, Any] | None, recorded: Any, present: Any) -> str | None:
    """Why a table does not show a row, or None if it may.

    Args:
        trained: `over_seeds` of the fits behind it.  recorded: settings in the file.  present: those of the recipe now.
    """
    if trained is None or any(trained.get(name) is None for name in FIELDS):
        return "commit and settings of the training are not recorded"
    if "unknown" in trained["commits"] or not trained["clean"]:
        return "trained with changes that are in no commit"
    changed = different(recorded, json.loads(json.dumps(present)))
    return f"the present recipe has other settings ({', '.join(changed[:3])})" if changed else None


def why_unclean(about: Mapping[str, Any]) -> str | None:
    """Why a table does not show what a benchmark measured, or None if it may."""
    clean = about.get("clean", not about["commit"].endswith(("-dirty", "unknown")))  # earlier files have the mark only
    return None if clean else "measured with changes that are in no commit"


def different(one: Any, other: Any, name: str = "") -> list[str]:
    """Names of the entries in which two JSON values differ, dots between levels.

    A switch that is off equals one that did not exist yet.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        parts = [different(one.get(key), other.get(key), f"{name}.{key}") for key in sorted(one.keys() | other.keys())]
        return [found for part in parts for found in part]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        same = not any(different(*pair) for pair in zip(one, other, strict=True))
    else:
        same = one == other or (one is None and other is False) or (one is False and other is None)
    return [] if same else [name.strip(".") or "all of them"]


def told(refused: Mapping[str, str], command: str) -> str:
    """One sentence that names rows that are not shown and why, and how to get them; empty if there are none.

    Args:
        refused: reason by name of the row.  command: that measures them anew.
    """
    by_reason: dict[str, list[str]] = {}
    for name, reason in refused.items():
        by_reason.setdefault(reason, []).append(name)
    quote = '"' if any("," in name for name in refused) else ""
    parts = [f"{', '.join(quote + name + quote for name in names)} ({reason})" for reason, names in by_reason.items()]
    return f"Not shown: {'; '.join(parts)}. Measure anew: `{command}`." if parts else ""
