"""Model files: one safetensors file whose header holds the settings as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gppvae.estimator.settings import Groups, group_texts
from gppvae.kernels.base import Leaf
from gppvae.likelihoods import Likelihood
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.checkpoint import read_tensors, under, write_tensors
from gppvae.training.distributed import first_process
from gppvae.training.folder import CHECKPOINT, MODEL, provenance


def save_model(path: str | os.PathLike[str], tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write model.safetensors into the folder `path`, made if need be; of several processes the first one does."""
    if not first_process():
        return
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / MODEL, tensors, meta | {"about": provenance()})


def load_model(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and settings of a saved model of this kind ("gppvae" or "vae")."""
    folder = Path(path)
    file = folder / MODEL if folder.is_dir() else folder
    if folder.is_dir() and not file.exists() and (folder / CHECKPOINT).exists():
        raise ValueError(f"{folder} holds a run that is not finished; run the same fit again to continue it")
    tensors, meta = read_tensors(file)
    if meta.get("kind") != kind:
        raise ValueError(
            f"expected a {kind} model in {path}, got a {meta.get('kind')} model; load it with its own class"
        )
    return tensors, meta


def kernel_extras(prior: LatentPrior) -> dict[str, Any]:
    """What each leaf fixed when it was bound, by its place in the prior."""
    return {name: leaf.extra_state() for name, leaf in _leaves(prior)}


def restore_kernels(prior: LatentPrior, extras: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Bind the kernels of a fresh prior as `kernel_extras` and the prior's tensors say they were."""
    for name, leaf in _leaves(prior):
        leaf.restore(extras[name], under(name, tensors))


def _leaves(prior: LatentPrior) -> list[tuple[str, Leaf]]:
    """Leaves by all their places: one object may stand in an expression twice."""
    modules = prior.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in modules if isinstance(module, Leaf)]


def check_same_kernel(given: Groups, saved: list[list[Any]], path: Any) -> None:
    """Raise ValueError unless the kernel given to load() is written like the one that was fitted."""
    if group_texts(given) != saved:
        raise ValueError(f"{path} was fitted with the kernel {saved}, got {group_texts(given)}; pass the same one")


def load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], path: Any) -> None:
    """load_state_dict with one sentence instead of a list of keys when the networks do not fit."""
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    saved = {name: tuple(value.shape) for name, value in tensors.items()}
    if own != saved:
        wrong = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))[0]
        raise ValueError(
            f"the networks do not fit the weights in {path} ({wrong}: expected {saved.get(wrong)}, "
            f"got {own.get(wrong)}); "
            "pass the encoder and decoder the model was fitted with"
        )
    module.load_state_dict(tensors)


def check_same_likelihood(given: Likelihood, saved: dict[str, Any]) -> None:
    """Learned numbers may differ from those the fit started with, but not the kind nor the weights of a network."""
    config = given.config()
    for what, of in (("likelihood", lambda config: config["name"]), ("feature network", _weights_of)):
        if of(config) != of(saved):
            raise ValueError(
                f"the model was fitted with the {what} {of(saved)}, got {of(config)}; pass the one it was fitted with"
            )


def _weights_of(likelihood: dict[str, Any]) -> str | None:
    return likelihood.get("network", {}).get("sha256")
