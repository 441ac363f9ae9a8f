"""The experiment: all methods over all seeds, continuing where an interrupted run stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.atomic import write_bytes
from gppvae.paper import provenance
from gppvae.paper.comparison.methods import METHODS, OWN_VALUES, Answer, Values
from gppvae.paper.comparison.setup import Setup, recipe_facts, recipe_key
from gppvae.paper.comparison.task import Task
from gppvae.paper.comparison.tradeoff import select_cvae, select_livae, select_shared
from gppvae.paper.comparison.workshop import Workshop
from gppvae.paper.evaluation import mse_per_sample
from gppvae.paper.provenance import different, fit_record
from gppvae.paper.statistics import over_seeds, paired_over_seeds
from gppvae.report.record import read_results, rounded, write_results
from gppvae.training.checkpoint import write_json
from gppvae.training.threads import limited_threads

SETTING, SELECTION, RESULTS = "setting.json", "selection.json", "results.json"
COMPARED = (("joint", "dis"), ("joint", "cvae"), ("joint", "livae"), ("posterior", "dis"))
SELECTED = {"shared": ("plain VAE", select_shared), "livae": ("LIVAE", select_livae), "cvae": ("CVAE", select_cvae)}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        split: name of the split.  setup: shared settings.  recipe: arguments of the GPPVAE of the global row.
        methods: names of METHODS, in the order to run.  select: choose the trade-off.
        seeds: of networks, batches and noise; the data are the same for all.
        data: what else decides the data, beside the split.
    """

    split: str
    setup: Setup
    recipe: dict[str, Any]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    select: bool
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown or not self.methods:
            raise ValueError(f"methods must be among {', '.join(METHODS)}, got {', '.join(unknown) or 'none'}")
        if not self.seeds:
            raise ValueError("seeds must be at least 1, got 0; use for example 5")

    def setting(self) -> dict[str, Any]:
        """All that decides the numbers beside method and seed, and beside the recipe of the global row."""
        setting = {"split": self.split, "setup": self.setup.facts(), "select": self.select} | self.data
        plain: dict[str, Any] = json.loads(json.dumps(setting))
        return plain

    def version(self, method: str) -> str:
        """What a record must say to be this plan's: the global row may be trained anew with another recipe."""
        return recipe_key(self.recipe) if method == "global" else ""


def run(folder: Path, plan: Plan, task: Task, progress: bool = True, say: Say = print) -> dict[str, Any]:
    """Run what is not finished yet and gather everything finished in the folder into results.json.

    Args:
        folder: of the experiment; made if need be.  plan: what to run.  task: the data.
        progress: show bars of every fit.  say: told which method runs and how many remain.

    Returns:
        The results, as written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_setting(folder, plan)
    work = Workshop(folder, task, plan.setup, plan.recipe, progress)
    with limited_threads(plan.setup.threads()):
        values = _values(work, plan, say)
        jobs = [(seed, name) for seed in plan.seeds for name in plan.methods]
        for number, (seed, name) in enumerate(jobs):
            label, method = METHODS[name]
            place = f"seed {seed}, {label} ({number + 1} of {len(jobs)}, {len(jobs) - number - 1} to follow)"
            if (_read(_record_path(folder, seed, name)) or {}).get("version") == plan.version(name):
                say(f"{place}: finished before")
                continue
            say(f"{place}: running")
            errors = _keep(folder, seed, name, plan.version(name), method(work, seed, values), task)
            say(f"{place}: MSE {np.mean(errors):.4f}")
    return gather(folder, plan, task)


def gather(folder: Path, plan: Plan, task: Task) -> dict[str, Any]:
    """Results of every seed and method that is finished in the folder; written to results.json."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("seed*/records/*.json"))]
    methods: dict[str, Any] = {}
    for name, (label, _) in METHODS.items():
        found = (r for r in records if r["method"] == name and r["version"] == plan.version(name))
        own = sorted(found, key=lambda record: record["seed"])
        if own:
            methods[name] = {"label": label, **_over_seeds(own)}
    content = {
        "experiment": task.experiment,
        "split": plan.split,
        "network": plan.setup.network,
        "epoch": "best on validation" if plan.setup.stopping() else "last",
        "data": task.facts,
        "setting": plan.setting(),
        "global_recipe": recipe_facts(plan.recipe),
        "selection": _read(folder / SELECTION),
        "methods": methods,
        "tests": _tests(methods),
    }
    write_results(folder / RESULTS, content)
    return read_results(folder / RESULTS)


def with_earlier(content: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """Results with the methods that only an earlier file of the same experiment has, so that methods may be run apart.

    An earlier file of other data or settings counts for nothing, and its global row not if the recipe is another.
    """
    same = ("split", "network", "data", "setting")
    if earlier is None or any(different(earlier.get(name), content[name]) for name in same):
        return content
    methods = {name: method for name, method in earlier["methods"].items() if name in METHODS}
    if earlier.get("global_recipe") != content["global_recipe"]:
        methods.pop("global", None)
    methods |= content["methods"]
    ordered = {name: methods[name] for name in METHODS if name in methods}
    selection = (earlier.get("selection") or {}) | (content["selection"] or {}) or None
    return content | {"methods": ordered, "selection": selection, "tests": _tests(ordered)}


def predictions(folder: Path, seed: int, name: str) -> dict[str, np.ndarray]:
    """Arrays that a finished method left: `mean`, `averaged` where there is one, and more for the figures."""
    with np.load(folder / f"seed{seed}" / "records" / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def _check_setting(folder: Path, plan: Plan) -> None:
    path, setting = folder / SETTING, plan.setting()
    before = _read(path)
    if before is None:
        write_json(path, setting)
    elif before != setting:
        changed = next(key for key in setting if before.get(key) != setting[key])
        raise ValueError(
            f"{folder} holds an experiment with another {changed}; choose another --out or remove the folder"
        )


def _values(work: Workshop, plan: Plan, say: Say) -> Values:
    """The chosen pixel variances, from selection.json where it is complete."""
    fixed = plan.setup.pixel_var
    if not plan.select or OWN_VALUES.issuperset(plan.methods):
        return Values(fixed, fixed, fixed)
    path = work.folder / SELECTION
    n_pixels = int(np.prod(work.task.image_shape))
    kept = _read(path) or {}
    wanted = {"shared"} | {name.removesuffix("-opt") for name in plan.methods if name.endswith("-opt")}
    for name, (label, select) in SELECTED.items():
        if name in wanted and name not in kept:
            say(f"trade-off: {label} at {len(plan.setup.grid)} values or more: running")
            kept[name] = select(work).facts()
            kept[name]["lambda"] = [plan.setup.trade_off(value, n_pixels) for value in kept[name]["grid"]]
            write_json(path, kept)
            edge = "" if kept[name]["inside"] else f", at the edge of {len(kept[name]['grid'])} values"
            say(f"trade-off: {label}: pixel variance {kept[name]['chosen']:g} chosen on validation{edge}")
    shared = kept["shared"]["chosen"]
    return Values(shared, *(kept.get(name, kept["shared"])["chosen"] for name in ("cvae", "livae")))


def _record_path(folder: Path, seed: int, name: str) -> Path:
    return folder / f"seed{seed}" / "records" / f"{name}.json"


def _keep(folder: Path, seed: int, name: str, version: str, answer: Answer, task: Task) -> np.ndarray:
    """Write a method's arrays, then its record, whose presence says that the method is finished."""
    path = _record_path(folder, seed, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"mean": answer.mean, "averaged": answer.averaged} | answer.arrays
    kept: dict[str, Any] = {key: np.asarray(value, np.float32) for key, value in arrays.items() if value is not None}
    partial = path.with_suffix(".part.npz")
    np.savez_compressed(partial, **kept)
    write_bytes(path.with_suffix(".npz"), partial.read_bytes())
    partial.unlink()
    truth = task.test.pixels()
    errors = mse_per_sample(truth, answer.mean)
    record = {
        "method": name,
        "seed": seed,
        "version": version,
        "seconds": round(answer.seconds, 1),
        "epochs": answer.epochs,
        "note": answer.note,
        "mean_decoded": rounded(errors),
        "sample_averaged": None if answer.averaged is None else rounded(mse_per_sample(truth, answer.averaged)),
        "fits": [fit_record(folder) for folder in answer.fits],
    }
    write_json(path, record | ({"learned": answer.learned} if answer.learned else {}))
    return errors


def _over_seeds(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    per_image = {
        kind: {record["seed"]: record[kind] for record in records if record[kind] is not None}
        for kind in ("mean_decoded", "sample_averaged")
    }
    summary = {kind: over_seeds(errors) if errors else None for kind, errors in per_image.items()}
    return {
        "note": records[0]["note"],
        "epochs": records[0]["epochs"],
        "seconds": [record["seconds"] for record in records],
        "trained": provenance.over_seeds([record.get("fits") for record in records]),
        **summary,
        "per_image": per_image,
    } | ({"learned": [record["learned"] for record in records]} if all("learned" in r for r in records) else {})


def _tests(methods: dict[str, Any]) -> dict[str, Any]:
    """Paired tests over images: both joint trainings against dis, and joint against the paper's other methods."""
    found = {}
    for name, other in COMPARED:
        if name in methods and other in methods:
            pair = (methods[which]["per_image"]["mean_decoded"] for which in (name, other))
            found[f"{name} against {other}"] = paired_over_seeds(*pair)
    return {name: test for name, test in found.items() if test}  # methods run apart may have no seed in common


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else None
