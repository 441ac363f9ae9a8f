"""Every method of the comparison: train it (or find it trained) and predict the test images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gppvae.data.sources.rotated_mnist import RotatedDigits
from gppvae.estimator import GPPVAE, VAE
from gppvae.experiments.baselines import copy_nearest_view, mean_image
from gppvae.experiments.rotated_mnist.data import OBJECT, PERIOD, VIEW
from gppvae.experiments.rotated_mnist.networks import Workshop, decoded, encoded, seconds_of
from gppvae.experiments.rotated_mnist.recipes import global_recipe, recipe_key
from gppvae.experiments.rotated_mnist.tradeoff import cvae_latents, livae_latents
from gppvae.kernels.columns import Learned
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.training.folder import RunFolder


@dataclass(frozen=True)
class Answer:
    """What a method says about the test images.

    Attributes:
        mean: images decoded from the mean latent, (n, 28, 28).
        averaged: images averaged over draws of the latent; None for methods without a latent.
        seconds: wall time of all training it needed.  epochs: (or steps) of each phase.  note: for the table.
        arrays: more for the figures.
    """

    mean: np.ndarray
    averaged: np.ndarray | None
    seconds: float = 0.0
    epochs: dict[str, int] = field(default_factory=dict)
    note: str = ""
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Values:
    """Pixel variances to use: shared by all, and those of the -opt variants."""

    shared: float
    cvae: float
    livae: float


EXACT_BATCH = 256
Run = Callable[[Workshop, int, Values], Answer]


def joint(work: Workshop, seed: int, values: Values) -> Answer:
    setup, start = work.setup, work.warmup(seed, values.shared)
    phases = [setup.gp_only(setup.gp_steps), setup.joint("minibatch", setup.epochs)]
    model = work.gppvae("joint", seed, values.shared, phases, start)
    return _gp_answer(work, model, start, "mini-batch inference", with_figures=True)


def exact(work: Workshop, seed: int, values: Values) -> Answer:
    setup, start = work.setup, work.warmup(seed, values.shared)
    phases = [setup.gp_only(setup.gp_steps), setup.joint("exact", setup.exact_steps)]
    # Its gradient is of all rows whatever the batch size, and larger batches are quicker.
    model = work.gppvae("exact", seed, values.shared, phases, start, batch_size=EXACT_BATCH)
    return _gp_answer(work, model, start, "exact inference, one step per pass")


def dis(work: Workshop, seed: int, values: Values) -> Answer:
    start = work.vae(seed, values.shared)
    model = work.gppvae("dis", seed, values.shared, [work.setup.gp_only(work.setup.dis_gp_steps)], start)
    return _gp_answer(work, model, start, "GP on the latents of the VAE")


def global_(work: Workshop, seed: int, values: Values) -> Answer:
    recipe = global_recipe(work.setup.network, work.setup.global_epochs)
    folder = work.seed_folder(seed) / f"global_{recipe_key(recipe)}"
    if RunFolder(folder).finished():
        model = GPPVAE.load(folder)
    else:
        model = GPPVAE(**recipe, network=work.setup.architecture, seed=seed)
        model.fit(work.digits.train.images, work.digits.train.table, out=folder, progress=work.progress)
    return _gp_answer(work, model, None, f"global inference, pixel variance {recipe['pixel_var']:g}")


def cvae(work: Workshop, seed: int, values: Values) -> Answer:
    return _cvae(work, seed, values.shared)


def cvae_opt(work: Workshop, seed: int, values: Values) -> Answer:
    return _cvae(work, seed, values.cvae)


def livae(work: Workshop, seed: int, values: Values) -> Answer:
    return _livae(work, seed, values.shared)


def livae_opt(work: Workshop, seed: int, values: Values) -> Answer:
    return _livae(work, seed, values.livae)


def vae_floor(work: Workshop, seed: int, values: Values) -> Answer:
    """The VAE's reconstruction of the test images themselves: no prediction, what its networks can draw."""
    model = work.vae(seed, values.shared)
    latents = encoded(model, work.digits.test)
    train_mean, train_var = encoded(model, work.digits.train)
    arrays = {"z_mean": train_mean, "z_logvar": np.log(train_var)}
    return _vae_answer(work, seed, model, latents, "sees the test images", arrays)


def mean_of_images(work: Workshop, seed: int, values: Values) -> Answer:
    return Answer(mean_image(work.digits.train.images, len(work.digits.test.table)), None, note="no model")


def nearest_view(work: Workshop, seed: int, values: Values) -> Answer:
    train, test = work.digits.train, work.digits.test
    return Answer(copy_nearest_view(train.images, train.table, test.table, OBJECT, VIEW, PERIOD), None, note="no model")


METHODS: dict[str, tuple[str, Run]] = {
    "joint": ("GPPVAE-joint", joint),
    "exact": ("GPPVAE-joint (exact)", exact),
    "dis": ("GPPVAE-dis", dis),
    "global": ("GPPVAE-global", global_),
    "cvae": ("CVAE", cvae),
    "cvae-opt": ("CVAE-opt", cvae_opt),
    "livae": ("LIVAE", livae),
    "livae-opt": ("LIVAE-opt", livae_opt),
    "vae": ("VAE reconstruction", vae_floor),
    "mean-image": ("mean image", mean_of_images),
    "nearest-view": ("nearest view copied", nearest_view),
}
QUICK_METHODS = ("joint", "dis", "livae")


def averaged(
    decode: Callable[[np.ndarray], np.ndarray], mean: np.ndarray, var: np.ndarray, n: int, seed: int
) -> np.ndarray:
    """Mean over n draws of the images decoded at z ~ N(mean, var)."""
    stream = np.random.default_rng(seed)
    total = np.zeros(())
    for _ in range(n):
        total = total + decode(mean + np.sqrt(var) * stream.standard_normal(mean.shape))
    return total / n


def _gp_answer(work: Workshop, model: GPPVAE, start: VAE | None, note: str, with_figures: bool = False) -> Answer:
    wanted = work.digits.test.table
    sampled = model.predict(wanted, n_samples=work.setup.n_draws)
    before = _shared_seconds(work, start)
    return Answer(
        mean=model.predict(wanted).mean[:, 0],
        averaged=sampled.mean[:, 0],
        seconds=before + model.fit_seconds_,
        epochs=_phase_lengths(model.history_) | ({} if start is None else _vae_lengths(work, start)),
        note=note,
        arrays=learned_arrays(model, work.digits) if with_figures else {},
    )


def _cvae(work: Workshop, seed: int, pixel_var: float) -> Answer:
    setup, test = work.setup, work.digits.test
    epochs = setup.warmup_epochs + setup.epochs
    model = work.cvae(seed, pixel_var, epochs)
    mean, var = cvae_latents(model, work.digits.train, test)

    def decode(z: np.ndarray) -> np.ndarray:
        return model.decode_views(z, test.table)[:, 0]

    drawn = averaged(decode, mean, var, setup.n_draws, seed)
    return Answer(decode(mean), drawn, seconds_of(model), {"cvae": epochs}, f"pixel variance {pixel_var:g}")


def _livae(work: Workshop, seed: int, pixel_var: float) -> Answer:
    model = work.vae(seed, pixel_var)
    latents = livae_latents(model, work.digits.train, work.digits.test)
    return _vae_answer(work, seed, model, latents, f"pixel variance {pixel_var:g}", {})


def _vae_answer(
    work: Workshop, seed: int, model: VAE, latents: tuple[np.ndarray, np.ndarray], note: str, arrays: dict[str, Any]
) -> Answer:
    drawn = averaged(lambda z: decoded(model, z), *latents, work.setup.n_draws, seed)
    seconds = _shared_seconds(work, model)
    return Answer(decoded(model, latents[0]), drawn, seconds, _vae_lengths(work, model), note, arrays)


def _vae_lengths(work: Workshop, model: VAE) -> dict[str, int]:
    return {"vae": work.setup.warmup_epochs + (0 if model.encoder is None else model.epochs)}


def _shared_seconds(work: Workshop, model: VAE | None) -> float:
    """Training time of a VAE, with that of the warm-up it went on from."""
    if model is None:
        return 0.0
    if model.encoder is None:
        return seconds_of(model)
    return seconds_of(model) + seconds_of(work.warmup(model.seed, model.pixel_var))


def _phase_lengths(history: list[dict[str, Any]]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for row in history:
        lengths[row["phase"]] = max(lengths.get(row["phase"], 0), int(row["epoch"]))
    return lengths


@torch.no_grad()
def learned_arrays(model: GPPVAE, digits: RotatedDigits) -> dict[str, np.ndarray]:
    """Encoder outputs on the training images, and the covariances between objects and between views."""
    mean, std = model.encode(digits.train.images, return_std=True)
    kernel = model._fitted[0].kernel
    found: dict[str, np.ndarray] = {"z_mean": np.asarray(mean), "z_logvar": 2.0 * np.log(np.asarray(std))}
    for leaf in kernel.leaves():
        if isinstance(leaf, Learned):
            values = torch.arange(len(leaf.levels))
            found["object_covariance"] = leaf.covariance(values, values).numpy()
        elif isinstance(leaf, StationaryLeaf):
            angles = torch.tensor(digits.angles, dtype=torch.float64)[:, None]
            found["view_covariance"] = leaf.covariance(angles, angles).numpy()
    return found
