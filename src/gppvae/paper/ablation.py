"""What each part of a recipe contributes: the error without it, at an angle held out for the purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.rotated_digits import RotatedDigits
from gppvae.estimator import GPPVAE
from gppvae.inference.phase import Phase
from gppvae.paper.comparison.setup import recipe_facts
from gppvae.paper.evaluation import mse_per_sample
from gppvae.paper.provenance import fit_record, over_seeds
from gppvae.paper.rotated_mnist.data import VIEW, data_facts, load_split
from gppvae.paper.rotated_mnist.recipes import global_recipe, setup
from gppvae.report.record import read_results, write_results
from gppvae.training.folder import MODEL
from gppvae.training.threads import one_thread

Change = dict[str, Any]  # arguments of the estimator, and fields of its phases under "phases", by name of the phase
Load = Callable[[str, Path | None], RotatedDigits]


@dataclasses.dataclass(frozen=True)
class Study:
    """One recipe and its variants.

    Attributes:
        split: of rotated MNIST.  inner_angle: taken out of training and predicted.
        recipe: arguments of the estimator.  variants: changes to the recipe, each made alone.
    """

    split: str
    inner_angle: float
    recipe: Callable[[], dict[str, Any]]
    variants: dict[str, Change]


def _rates(networks: float, prior: float) -> dict[str, float]:
    return {"encoder": networks, "decoder": networks, "prior": prior, "noise": prior}


def _posterior_rates() -> dict[str, float]:
    return setup("paper").joint("posterior", 1).lr


def _best_recipe() -> dict[str, Any]:
    recipe = global_recipe("image")
    return recipe | {"network": "image", "phases": recipe["phases"][:1]}


def _joint_recipe() -> dict[str, Any]:
    """GPPVAE-joint of the comparison with the paper, trained for less."""
    shared = setup("paper")
    return {
        "kernel": shared.kernel,
        "network": shared.architecture,
        "latent_dim": shared.latent_dim,
        "pixel_var": shared.pixel_var,
        "alpha": shared.alpha,
        "batch_size": shared.batch_size,
        "phases": [
            Phase("vae", "vae", 10, shared.network_rates(), average=shared.average),
            shared.gp_only(shared.gp_steps),
            shared.joint("minibatch", 50),
        ],
    }


STUDIES = {
    "best": Study("published", 247.5, _best_recipe, {
        "the recipe": {},
        "no weight decay": {"phases": {"global": {"weight_decay": 0.0}}},
        "weight decay 0.5 instead of 1": {"phases": {"global": {"weight_decay": 0.5}}},
        "half the epochs": {"phases": {"global": {"epochs": 80}}},
        "no residual blocks, weight decay 0.5": {"network": "wide", "phases": {"global": {"weight_decay": 0.5}}},
        "learned length scale": {"kernel": "Learned(digit, 24) * Periodic(angle, 360, lengthscale=1.0)"},
        "24 latents instead of 48": {"latent_dim": 24},
        "latent noise 0.1 instead of 0.02": {"alpha": 0.01},
    }),
    "joint": Study("paper", 202.5, _joint_recipe, {
        "joint, 10 + 50 epochs": {},
        "no average of the weights": {"phases": {"vae": {"average": 0.0}, "joint": {"average": 0.0}}},
        "cosine decay instead": {"phases": {"vae": {"average": 0.0}, "joint": {"average": 0.0, "decay": "cosine"}}},
        "batches of 64": {"batch_size": 64},
        "pixel variance 0.01": {"pixel_var": 0.01},
        "pixel variance 0.08": {"pixel_var": 0.08},
        "rate of the prior 0.01": {"phases": {"joint": {"lr": _rates(0.001, 0.01)}}},
        "rate of the networks 0.003": {"phases": {"joint": {"lr": _rates(0.003, 0.001), "average": 0.9995}}},
        "GP posterior coding": {"phases": {"joint": {"inference": "posterior", "lr": _posterior_rates()}}},
        "GP posterior coding, encoder at the decoder's rate": {"phases": {"joint": {"inference": "posterior"}}},
        "dis: 60 epochs of VAE, then GP only": {
            "phases": {"vae": {"epochs": 60}, "gp_only": {"epochs": 500}, "joint": {"epochs": 0}}
        },
        "joint, 30 + 30 epochs": {"phases": {"vae": {"epochs": 30}, "joint": {"epochs": 30}}},
    }),
}  # fmt: skip


def run(
    name: str, out: Path, results: Path, seed: int = 0, mnist: Path | None = None, progress: bool = True,
    load: Load = lambda split, mnist: load_split(split, mnist=mnist),
) -> dict[str, Any]:  # fmt: skip
    """Fit every variant of a study without one angle, predict it, write results/ablation_<name>.json.

    Args:
        name: of STUDIES.  out: folder of the fits, in which a stopped run goes on.  results: folder of the JSON file.
        load: gives the data of a split.
    """
    if name not in STUDIES:
        raise ValueError(f"the study must be one of {', '.join(STUDIES)}, got {name!r}; best is the default")
    study = STUDIES[name]
    digits = load(study.split, mnist)
    inner = np.isclose(digits.train.table[VIEW].to_numpy(), study.inner_angle)
    rows = {}
    for variant, change in study.variants.items():
        folder = out / name / "".join(c if c.isalnum() else "-" for c in variant)
        if not (folder / "result.json").exists():
            with one_thread():
                errors = _errors(variant_recipe(study, change), folder, seed, digits, inner, progress)
            write_results(folder / "result.json", errors | {"fits": [fit_record(folder)]})
        found = read_results(folder / "result.json")
        rows[variant] = {"inner": found["inner"], "train": found["train"], "trained": over_seeds([found.get("fits")])}
        rows[variant]["recipe"] = recipe_facts(variant_recipe(study, change))
    facts = {"study": name, "data": data_facts(digits), "inner_angle": study.inner_angle, "seed": seed}
    summary = {"experiment": "ablation", **facts, "variants": rows}
    write_results(results / f"ablation_{name}.json", summary)
    return summary


def variant_recipe(study: Study, change: Change) -> dict[str, Any]:
    """Arguments of the estimator of one variant."""
    recipe = study.recipe()
    changed = change.get("phases", {})
    phases = [dataclasses.replace(phase, **changed.get(phase.name, {})) for phase in recipe["phases"]]
    own = {name: value for name, value in change.items() if name != "phases"}
    return recipe | own | {"phases": [phase for phase in phases if phase.epochs > 0]}


def _errors(
    recipe: dict[str, Any], folder: Path, seed: int, digits: RotatedDigits, inner: np.ndarray, progress: bool
) -> dict[str, float]:
    """Mean squared error at the inner angle and on the training images."""
    images, table = digits.train.images, digits.train.table
    if (folder / MODEL).exists():
        model = GPPVAE.load(folder)
    else:
        model = GPPVAE(seed=seed, **recipe).fit(images[~inner], table[~inner], out=folder, progress=progress)
    known = inner & np.isin(table["digit"], table["digit"][~inner])  # a digit may have had no other view
    return {
        part: float(mse_per_sample(images[rows], model.predict(table[rows]).mean).mean())
        for part, rows in (("inner", known), ("train", ~inner))
    }
