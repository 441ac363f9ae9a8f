"""What each part of the recipe is worth, asked of an angle that is taken out of training for the purpose."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.estimator import GPPVAE
from gppvae.experiments.evaluation import mse_per_sample
from gppvae.experiments.record import read_results, write_results
from gppvae.experiments.rotated_mnist.data import VIEW, data_facts, load_split
from gppvae.experiments.rotated_mnist.recipes import global_recipe
from gppvae.training.folder import MODEL

INNER_ANGLE = 247.5

# Changes to the recipe, each alone: arguments of the estimator, and fields of its first phase under "phase".
VARIANTS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "no weight decay": {"phase": {"weight_decay": 0.0}},
    "weight decay 0.05 instead of 0.5": {"phase": {"weight_decay": 0.05}},
    "half the epochs": {"phase": {"epochs": 40}},
    "learned length scale": {"kernel": "Learned(digit, 24) * Periodic(angle, 360, lengthscale=1.0)"},
    "24 latents instead of 48": {"latent_dim": 24},
    "latent noise 0.1 instead of 0.02": {"alpha": 0.01},
}


def run(out: Path, results: Path, seed: int = 0, mnist: Path | None = None, progress: bool = True) -> dict[str, Any]:
    """Fit every variant of the wide recipe without one angle, predict it, write results/ablation.json."""
    digits = load_split("published", mnist=mnist)
    inner = np.isclose(digits.train.table[VIEW].to_numpy(), INNER_ANGLE)
    rows = {}
    for name, change in VARIANTS.items():
        folder = out / name.replace(" ", "-").replace("(", "").replace(")", "")
        record = folder / "result.json"
        if not record.exists():
            started = time.process_time()
            model = _fitted(folder, seed, change, digits.train.images[~inner], digits.train.table[~inner], progress)
            parts = {"inner": inner, "train": ~inner}
            errors = {part: _mse(model, digits.train.images[at], digits.train.table[at]) for part, at in parts.items()}
            write_results(record, errors | {"cpu_seconds": time.process_time() - started})
        rows[name] = read_results(record)
    summary = {"experiment": "ablation", "data": data_facts(digits), "inner_angle": INNER_ANGLE, "seed": seed}
    write_results(results / "ablation.json", summary | {"variants": rows})
    return summary | {"variants": rows}


def _fitted(folder: Path, seed: int, change: dict[str, Any], images: Any, table: Any, progress: bool) -> GPPVAE:
    if (folder / MODEL).exists():
        return GPPVAE.load(folder)
    recipe = global_recipe("wide")
    first = dataclasses.replace(recipe["phases"][0], **change.get("phase", {}))
    recipe |= {name: value for name, value in change.items() if name != "phase"} | {"phases": [first]}
    return GPPVAE(network="wide", seed=seed, **recipe).fit(images, table, out=folder, progress=progress)


def _mse(model: GPPVAE, images: np.ndarray, table: Any) -> float:
    return float(mse_per_sample(images, model.predict(table).mean).mean())
