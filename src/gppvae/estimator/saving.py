"""Model files: one safetensors file whose header holds the settings as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gppvae.kernels.base import Kernel, Leaf
from gppvae.kernels.parse import parse_kernel
from gppvae.likelihoods import Likelihood
from gppvae.training.checkpoint import read_tensors, under, write_tensors
from gppvae.training.distributed import first_process
from gppvae.training.folder import MODEL, provenance
from gppvae.training.phases import Phase


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
    if folder.is_dir() and not file.exists() and (folder / "checkpoint.safetensors").exists():
        raise ValueError(f"{folder} holds a run that is not finished; run the same fit again to continue it")
    tensors, meta = read_tensors(file)
    if meta.get("kind") != kind:
        raise ValueError(
            f"expected a {kind} model in {path}, got a {meta.get('kind')} model; load it with its own class"
        )
    return tensors, meta


def kernel_extras(kernel: Kernel) -> dict[str, Any]:
    """What each leaf fixed when it was bound, by its place in the expression."""
    return {name: leaf.extra_state() for name, leaf in kernel.named_modules() if isinstance(leaf, Leaf)}


def restore_kernel(text: str, extras: dict[str, Any], tensors: dict[str, Tensor]) -> Kernel:
    """The bound kernel that `kernel_extras` and its state_dict describe."""
    kernel = parse_kernel(text)
    for name, leaf in kernel.named_modules():
        if isinstance(leaf, Leaf):
            leaf.restore(extras[name], under(name, tensors) if name else tensors)
    kernel.load_state_dict(tensors)
    return kernel


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


def constructor_arguments(settings: dict[str, Any], likelihood: Likelihood | None = None) -> dict[str, Any]:
    """The estimator's arguments among saved settings, phases as objects, with the likelihood given anew."""
    phases = settings.get("phases")
    kept = {name: value for name, value in settings.items() if name not in ("own_networks", "data", "phases")}
    if likelihood is not None:
        _check_same_likelihood(likelihood.config(), settings["likelihood"])
        kept["likelihood"] = likelihood
    return kept | ({"phases": [Phase(**phase) for phase in phases]} if phases else {})


def _check_same_likelihood(given: dict[str, Any], saved: str | dict[str, Any]) -> None:
    """Learned numbers may differ from those the fit started with, but not the kind nor the weights of a network."""
    was = {"name": saved} if isinstance(saved, str) else saved
    for what, of in (("likelihood", lambda config: config["name"]), ("feature network", _weights_of)):
        if of(given) != of(was):
            raise ValueError(
                f"the model was fitted with the {what} {of(was)}, got {of(given)}; pass the one it was fitted with"
            )


def _weights_of(likelihood: dict[str, Any]) -> str | None:
    return likelihood.get("network", {}).get("sha256")
