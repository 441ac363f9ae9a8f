"""Every method of the comparison: train it (or find it trained) and predict the test images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.image_set import unit_pixels
from gppvae.estimator import GPPVAE, VAE
from gppvae.estimator.simple_answers import copy_nearest_view, mean_image, mean_of_nearest_view
from gppvae.paper.comparison.learned import learned_arrays, learned_facts
from gppvae.paper.comparison.task import MIRRORED
from gppvae.paper.comparison.tradeoff import cvae_latents, livae_latents
from gppvae.paper.comparison.workshop import Workshop, decoded, encoded, seconds_of


@dataclass(frozen=True)
class Answer:
    """What a method says about the test images.

    Attributes:
        mean: images decoded from the mean latent, in the shape of the test images.
        averaged: images averaged over draws of the latent; None for methods without a latent.
        seconds: wall time of all training it needed.  epochs: (or steps) of each phase.  note: for the table.
        arrays: more for the figures.  learned: what the kernel says, in numbers.  fits: folders of all its training.
    """

    mean: np.ndarray
    averaged: np.ndarray | None
    seconds: float = 0.0
    epochs: dict[str, int] = field(default_factory=dict)
    note: str = ""
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    learned: dict[str, float] = field(default_factory=dict)
    fits: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Values:
    """Pixel variances to use: shared by all, and those of the -opt variants."""

    shared: float
    cvae: float
    livae: float


Run = Callable[[Workshop, int, Values], Answer]


def joint(work: Workshop, seed: int, values: Values) -> Answer:
    setup, start = work.setup, work.warmup(seed, values.shared)
    phases = [setup.gp_only(setup.gp_steps), setup.joint("minibatch", setup.epochs)]
    model = work.gppvae("joint", seed, values.shared, phases, start)
    return _gp_answer(work, model, start, "mini-batch inference", with_figures=True)


def posterior(work: Workshop, seed: int, values: Values) -> Answer:
    setup, start = work.setup, work.warmup(seed, values.shared)
    phases = [setup.gp_only(setup.gp_steps), setup.joint("posterior", setup.epochs)]
    model = work.gppvae("posterior", seed, values.shared, phases, start)
    return _gp_answer(work, model, start, "posterior coding")


def exact(work: Workshop, seed: int, values: Values) -> Answer:
    setup, start = work.setup, work.warmup(seed, values.shared)
    phases = [setup.gp_only(setup.gp_steps), setup.joint("exact", setup.exact_steps)]
    model = work.gppvae("exact", seed, values.shared, phases, start, batch_size=setup.exact_batch())
    return _gp_answer(work, model, start, "exact inference, one step per pass")


def dis(work: Workshop, seed: int, values: Values) -> Answer:
    start = work.vae(seed, values.shared)
    model = work.gppvae("dis", seed, values.shared, [work.setup.gp_only(work.setup.dis_gp_steps)], start)
    return _gp_answer(work, model, start, "GP on the latents of the VAE")


def global_(work: Workshop, seed: int, values: Values) -> Answer:
    model = work.global_(seed)
    return _gp_answer(work, model, None, f"global inference, pixel variance {model.pixel_var:g}")


def default(work: Workshop, seed: int, values: Values) -> Answer:
    return _gp_answer(work, work.default(seed, "default", work.task.train), None, "a kernel and nothing else")


def mirrored(work: Workshop, seed: int, values: Values) -> Answer:
    train = work.task.mirrored
    if train is None:
        raise ValueError("mirrored needs views that are mirror images of each other, got others; leave the method out")
    # What mirror images of an object have in common beside the view: a parting, the side of the light.
    further = f"Learned({work.task.object}) * Categorical({MIRRORED})"
    note = "the same, trained on mirror images too, with a term for what differs in them"
    return _gp_answer(work, work.default(seed, "mirrored", train, further), None, note)


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
    latents = encoded(model, work.task.test)
    train_mean, train_var = encoded(model, work.task.train)
    arrays = {"z_mean": train_mean, "z_logvar": np.log(train_var)}
    return _vae_answer(work, seed, model, latents, "sees the test images", arrays)


def mean_of_images(work: Workshop, seed: int, values: Values) -> Answer:
    images = work.task.train.images
    return _no_model(work, mean_image(images, len(work.task.test.table)))


def mean_of_view(work: Workshop, seed: int, values: Values) -> Answer:
    task, train = work.task, work.task.train
    return _no_model(work, mean_of_nearest_view(train.images, train.table, task.test.table, task.angle, task.period))


def nearest_view(work: Workshop, seed: int, values: Values) -> Answer:
    task, shown = work.task, work.task.shown
    columns = task.object, task.angle, task.period
    return _no_model(work, copy_nearest_view(shown.images, shown.table, task.test.table, *columns))


METHODS: dict[str, tuple[str, Run]] = {
    "joint": ("GPPVAE-joint", joint),
    "posterior": ("GPPVAE-joint (posterior)", posterior),
    "exact": ("GPPVAE-joint (exact)", exact),
    "dis": ("GPPVAE-dis", dis),
    "global": ("GPPVAE-global", global_),
    "default": ("GPPVAE, defaults", default),
    "mirrored": ("GPPVAE, defaults, mirror images", mirrored),
    "cvae": ("CVAE", cvae),
    "cvae-opt": ("CVAE-opt", cvae_opt),
    "livae": ("LIVAE", livae),
    "livae-opt": ("LIVAE-opt", livae_opt),
    "vae": ("VAE reconstruction", vae_floor),
    "mean-image": ("mean image", mean_of_images),
    "mean-view": ("mean image of the nearest view", mean_of_view),
    "nearest-view": ("nearest view copied", nearest_view),
}
NO_MODEL = frozenset({"mean-image", "mean-view", "nearest-view"})
OWN_VALUES = NO_MODEL | {"global", "default", "mirrored"}  # they need no chosen pixel variance


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
    task = work.task
    learned = learned_facts(model, task)
    arrays = learned_arrays(model, task) if with_figures else {}
    if task.new_objects:
        model.add_objects(task.shown.images, task.shown.table)
    sampled = model.predict(task.test.table, n_samples=work.setup.n_draws)
    before = _shared_seconds(work, start)
    return Answer(
        mean=task.pictures(model.predict(task.test.table).mean),
        averaged=task.pictures(sampled.mean),
        seconds=before + model.fit_seconds_,
        epochs=_phase_lengths(model.history_) | ({} if start is None else _vae_lengths(work, start)),
        note=note,
        arrays=arrays,
        learned=learned,
        fits=(*_vae_fits(work, start), work.folders[model]),
    )


def _cvae(work: Workshop, seed: int, pixel_var: float) -> Answer:
    setup, task = work.setup, work.task
    model = work.cvae(seed, pixel_var, setup.cvae_epochs or setup.warmup_epochs + setup.epochs)
    mean, var = cvae_latents(model, task, task.shown, task.test)

    def decode(z: np.ndarray) -> np.ndarray:
        return task.pictures(model.decode_views(z, task.test.table))

    drawn = averaged(decode, mean, var, setup.n_draws, seed)
    epochs = _phase_lengths(model.history_)
    note, fits = f"pixel variance {pixel_var:g}", (work.folders[model],)
    return Answer(decode(mean), drawn, seconds_of(model), epochs, note, fits=fits)


def _livae(work: Workshop, seed: int, pixel_var: float) -> Answer:
    model = work.vae(seed, pixel_var)
    latents = livae_latents(model, work.task, work.task.shown, work.task.test)
    return _vae_answer(work, seed, model, latents, f"pixel variance {pixel_var:g}", {})


def _vae_answer(
    work: Workshop, seed: int, model: VAE, latents: tuple[np.ndarray, np.ndarray], note: str, arrays: dict[str, Any]
) -> Answer:
    def decode(z: np.ndarray) -> np.ndarray:
        return work.task.pictures(decoded(model, z))

    drawn = averaged(decode, *latents, work.setup.n_draws, seed)
    seconds = _shared_seconds(work, model)
    lengths, fits = _vae_lengths(work, model), _vae_fits(work, model)
    return Answer(decode(latents[0]), drawn, seconds, lengths, note, arrays, fits=fits)


def _no_model(work: Workshop, images: np.ndarray) -> Answer:
    return Answer(unit_pixels(images, work.task.train.images.dtype), None, note="no model")


def _vae_lengths(work: Workshop, model: VAE) -> dict[str, int]:
    own = _phase_lengths(model.history_).get("vae", 0)
    before = 0 if model.encoder is None else _vae_lengths(work, work.warmup(model.seed, model.pixel_var or 0.0))["vae"]
    return {"vae": before + own}


def _shared_seconds(work: Workshop, model: VAE | None) -> float:
    """Training time of a VAE, with that of the warm-up it went on from."""
    if model is None:
        return 0.0
    if model.encoder is None:
        return seconds_of(model)
    return seconds_of(model) + seconds_of(work.warmup(model.seed, model.pixel_var or 0.0))


def _vae_fits(work: Workshop, model: VAE | None) -> tuple[Path, ...]:
    """Folders of a VAE and of the warm-up it went on from."""
    if model is None:
        return ()
    before = () if model.encoder is None else (work.folders[work.warmup(model.seed, model.pixel_var or 0.0)],)
    return (*before, work.folders[model])


def _phase_lengths(history: list[dict[str, Any]]) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for row in history:
        lengths[row["phase"]] = max(lengths.get(row["phase"], 0), int(row["epoch"]))
    return lengths
