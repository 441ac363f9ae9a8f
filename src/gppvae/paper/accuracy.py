"""The best model on the published rotated-MNIST split: error, uncertainty, digits never seen in training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.rotated_digits import RotatedDigits
from gppvae.estimator import GPPVAE
from gppvae.estimator.simple_answers import copy_nearest_view, mean_of_nearest_view
from gppvae.paper.comparison.setup import recipe_facts
from gppvae.paper.evaluation import coverage, gaussian_nll, mse_per_sample, varying
from gppvae.paper.provenance import fit_record, over_seeds
from gppvae.paper.rotated_mnist.data import OBJECT, PERIOD, VIEW, data_facts, load_split
from gppvae.paper.rotated_mnist.recipes import global_recipe
from gppvae.paper.statistics import mean_and_range
from gppvae.report.record import read_results, write_results
from gppvae.training.folder import MODEL

MODELS = {
    "image": ("image", 1),
    "image-5": ("image", 5),
    "paper": ("paper", 1),
    "paper-5": ("paper", 5),
}  # network, members
ARCHITECTURES = {"paper": "conv", "image": "image"}
VIEWS_GIVEN = (1, 2, 4, 8)
N_DRAWS = 64


def run(
    network: str,
    seeds: list[int],
    out: Path,
    results: Path,
    mnist: Path | None = None,
    epochs: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Fit one model per seed, evaluate, and write results/accuracy_<network>.json.

    Args:
        network: "paper" (the peers' 8 channels, with 48 latents) or "image", that of the defaults, or five of either in
            one model, "paper-5" and "image-5".
        seeds: one run each; finished ones are kept.
        out: run folders.  results: folder of the JSON file.  mnist: folder of MNIST.
        epochs: other than the recipe's.  progress: show progress bars.
    """
    recipe = recipe_of(network, epochs)
    digits = load_split("published", mnist=mnist)
    rows = []
    for seed in seeds:
        folder = out / network / f"seed{seed}"
        record = folder / "result.json"
        if not record.exists():
            write_results(record, _one_seed(network, recipe, seed, digits, folder, progress))
        rows.append(read_results(record))
    summary = {
        "experiment": "accuracy",
        "network": network,
        "data": data_facts(digits),
        "seeds": seeds,
        "recipe": recipe_facts(recipe),
        "trained": over_seeds([row.get("fits") for row in rows]),
        "mse": mean_and_range([row["mse"] for row in rows]),
        "mse_averaged": mean_and_range([row["mse_averaged"] for row in rows]),
        "fit_seconds": mean_and_range([row["fit_seconds"] for row in rows]),
        "coverage": {level: mean_and_range([row["coverage"][level] for row in rows]) for level in rows[0]["coverage"]},
        "nll_per_pixel": mean_and_range([row["nll_per_pixel"] for row in rows]),
        "new_objects": {
            k: {name: mean_and_range([row["new_objects"][k][name] for row in rows]) for name in measures}
            for k, measures in rows[0]["new_objects"].items()
        },
        "mse_of_average": _average_of_models(network, seeds, digits, out),
        "per_seed": [{name: value for name, value in row.items() if name != "fits"} for row in rows],
    }
    write_results(results / f"accuracy_{network}.json", summary)
    return summary


def recipe_of(network: str, epochs: int | None = None) -> dict[str, Any]:
    """Arguments of the estimator for one of MODELS, but for the architecture."""
    if network not in MODELS:
        raise ValueError(f"network must be one of {', '.join(MODELS)}, got {network!r}; image is the default")
    name, members = MODELS[network]
    return global_recipe(name, epochs, members)


def _average_of_models(network: str, seeds: list[int], digits: RotatedDigits, out: Path) -> float:
    """MSE of one prediction: the mean over the models of all seeds of their decoded means."""
    predicted = [GPPVAE.load(out / network / f"seed{seed}").predict(digits.test.table).mean for seed in seeds]
    return float(mse_per_sample(digits.test.images, np.mean(predicted, axis=0)).mean())


def _one_seed(
    network: str, recipe: dict[str, Any], seed: int, digits: RotatedDigits, folder: Path, progress: bool
) -> dict[str, Any]:
    if (folder / MODEL).exists():
        model = GPPVAE.load(folder)
    else:
        model = GPPVAE(network=ARCHITECTURES[MODELS[network][0]], seed=seed, **recipe)
        model.fit(digits.train.images, digits.train.table, out=folder, progress=progress)
    return {
        "seed": seed,
        "fit_seconds": model.fit_seconds_,
        "fits": [fit_record(folder)],
        **test_errors(model, digits),
        "new_objects": new_object_errors(model, digits, seed),
    }


def test_errors(model: GPPVAE, digits: RotatedDigits) -> dict[str, Any]:
    """At the held-out angle, last epoch: MSE mean-decoded and averaged over draws, coverage, likelihood."""
    truth, rows = digits.test.images, digits.test.table
    decoded = mse_per_sample(truth, model.predict(rows).mean)
    drawn = model.predict(rows, N_DRAWS, include_noise=True)
    assert drawn.std is not None
    where = varying(digits.train.images)
    mean, std = drawn.mean, drawn.std
    return {
        "mse": float(decoded.mean()),
        "mse_standard_error": float(decoded.std(ddof=1) / np.sqrt(len(decoded))),
        "mse_averaged": float(mse_per_sample(truth, mean).mean()),
        "coverage": coverage(truth, mean, std, where),
        "nll_per_pixel": gaussian_nll(truth, mean, std, where),
        "share_of_varying_pixels": float(where.mean()),
    }


def new_object_errors(model: GPPVAE, digits: RotatedDigits, seed: int) -> dict[str, dict[str, float]]:
    """Validation digits from k random views each: MSE on all their other views, beside two simple answers."""
    errors = {}
    for k in VIEWS_GIVEN:
        given = given_views(digits.valid.table, k, seed)
        images, table = digits.valid.images, digits.valid.table
        started = time.perf_counter()
        model.add_objects(images[given], table[given])
        seconds = time.perf_counter() - started
        asked, truth = table[~given], images[~given]
        drawn = model.predict(asked, 16)
        assert drawn.std is not None
        copies = copy_nearest_view(images[given], table[given], asked, OBJECT, VIEW, PERIOD)
        means = mean_of_nearest_view(digits.train.images, digits.train.table, asked, VIEW, PERIOD)
        errors[str(k)] = {
            "mse": float(mse_per_sample(truth, model.predict(asked).mean).mean()),
            "mean_std": float(drawn.std.mean()),
            "copy_nearest_view": float(mse_per_sample(truth, copies).mean()),
            "mean_image_of_view": float(mse_per_sample(truth, means).mean()),
            "seconds": seconds,
        }
    return errors


def given_views(table: pd.DataFrame, k: int, seed: int) -> np.ndarray:
    """True for k random rows of each object, (N,)."""
    rng = np.random.default_rng([seed, k])
    given = np.zeros(len(table), dtype=bool)
    for _, rows in table.reset_index(drop=True).groupby(OBJECT):
        given[rng.choice(rows.index.to_numpy(), k, replace=False)] = True
    return given
