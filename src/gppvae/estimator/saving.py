"""Model files: one safetensors file with the settings as JSON in its header."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gppvae.data.header import MismatchError, checked_content
from gppvae.data.run_files import MODEL, finished_model
from gppvae.data.table import Table
from gppvae.data.words import shown
from gppvae.estimator.checks import number, whole
from gppvae.estimator.settings import WRITES_PHASES, Groups, group_texts
from gppvae.inference.phase import Phase
from gppvae.kernels import IdLeaf, Learned, Linear
from gppvae.kernels.base import Leaf
from gppvae.likelihoods import Likelihood
from gppvae.nets.build import build_networks
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.checkpoint import check_finite, read_tensors, under, write_tensors
from gppvae.training.distributed import first_process
from gppvae.training.folder import provenance

INTEGER = re.compile(r"-?\d{1,18}")
MAX_VALUES = 2**31  # of one sample
PROBES = 64  # rows at which predictions of a loaded model must be finite
SAME_AS = "same_as"  # in files, the name of a leaf that the expression uses more than once


def save_model(path: str | os.PathLike[str], tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write model.safetensors into the folder `path`, created if missing; only the first process writes."""
    if not first_process():
        return
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / MODEL, tensors, meta | {"about": provenance()})


def load_model(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and settings of a saved model of this kind ("gppvae" or "vae")."""
    file = finished_model(path)
    tensors, meta = read_tensors(file)
    if meta.get("kind") != kind:
        raise ValueError(
            f"expected a {kind} model in {path}, got a {str(meta.get('kind'))[:20]} model; load it with its own class"
        )
    with checked_content(file):
        _check_meta(meta)
    return tensors, meta


def _check_meta(meta: dict[str, Any]) -> None:
    """Raise ValueError if the metadata of a model file are invalid."""
    shape, layout = meta["shape"], meta["layout"]
    for size in shape:
        whole("a size in shape", size, 1)
    if not isinstance(shape, list) or len(shape) not in (1, 3) or math.prod(shape) > MAX_VALUES:
        raise ValueError(f"shape is {shown(shape)}")
    fits = {"vector": len(shape) == 1, "grey": len(shape) == 3 and shape[0] == 1}
    if not fits.get(layout, layout in ("first", "last") and len(shape) == 3):
        raise ValueError(f"layout is {shown(layout)} for samples of shape {shape}")
    names = meta["names"]
    fits_names = isinstance(names, list) and len(shape) == 1 and len(names) == shape[0]
    if names is not None and not (fits_names and all(isinstance(name, str) for name in names)):
        raise ValueError(f"names is {shown(names)} for samples of shape {shape}")
    whole_numbers = meta.get("integer_names", False)
    if not isinstance(whole_numbers, bool) or (whole_numbers and not all(map(INTEGER.fullmatch, names or [""]))):
        raise ValueError(f"integer_names is {shown(whole_numbers)} for the names {shown(names)}")
    if not isinstance(meta.get("frames", False), bool):
        raise ValueError(f"frames is {shown(meta['frames'])}")
    if meta["kind"] == "gppvae" and set(meta["described"]) != {"kernel", "learned", "columns"}:
        raise ValueError(f"described is {shown(meta['described'])}")
    for name in ("given", "trained", "own"):
        if not isinstance(meta[name], dict):
            raise ValueError(f"{name} is {shown(meta[name])}")
    for phase in meta["trained"]["phases"]:
        if Phase(**phase).to_json() != phase:
            raise ValueError(f"a phase is {shown(phase)}")
    if not isinstance(meta["trained"]["likelihood"], dict):
        raise ValueError("the likelihood is not an object")
    _check_history(meta["history"])
    number("fit_seconds", meta["fit_seconds"], 0.0, 1e12, "1")
    whole("skipped_steps", meta["skipped_steps"], 0)


def _check_history(history: Any) -> None:
    if not isinstance(history, list):
        raise ValueError(f"history is {shown(history)}")
    for row in history:
        if not isinstance(row["phase"], str):
            raise ValueError(f"a phase in history is {shown(row['phase'])}")
        whole("an epoch in history", row["epoch"], 0)
        for name, value in row.items():
            if name != "phase" and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise ValueError(f"{name} in history is {shown(value)}")


def check_settings_saved(estimator: type, given: dict[str, Any], trained: dict[str, Any]) -> None:
    """Raise ValueError unless all settings are present: a missing one would silently get its default."""
    names = {item.name for item in fields(estimator)} - {"device"}
    wanted = names - set(WRITES_PHASES) if given.get("phases") else names  # explicit phases replace those
    if set(given) != wanted:
        raise ValueError(f"settings differ from those of {estimator.__name__}: {sorted(set(given) ^ wanted)}")
    missing = names - set(WRITES_PHASES) - {"pixel_var"} - set(trained)
    if missing:
        raise ValueError(f"the trained settings lack {sorted(missing)}")


def check_network_sizes(estimator: Any, sizes: Sequence[int], tensors: dict[str, Tensor]) -> None:
    """Raise ValueError unless the networks that the settings describe have the saved sizes.

    On the meta device, whose tensors need no memory, so that absurd settings cost nothing.
    """
    numbers = estimator._make_likelihood().numbers_per_value
    with torch.device("meta"):
        networks = build_networks(
            estimator.network, estimator.shape_, sum(sizes), numbers_per_value=numbers, masked=estimator._sees_mask,
            sizes=sizes, **estimator._network_options,
        )  # fmt: skip
    for name, network in zip(("encoder", "decoder"), networks, strict=True):
        mismatch = _first_mismatch(network, under(f"autoencoder.{name}", tensors))
        if mismatch is not None:
            wrong, expected, saved = mismatch
            raise ValueError(f"{name}.{wrong} has shape {saved}, for these settings {expected}")


def _first_mismatch(module: torch.nn.Module, tensors: dict[str, Tensor]) -> tuple[str, Any, Any] | None:
    """(name, shape in the module, shape in `tensors`) of the first tensor whose shapes differ, if any."""
    own, saved = ({name: tuple(x.shape) for name, x in each.items()} for each in (module.state_dict(), tensors))
    wrong = min((name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name)), default=None)
    return None if wrong is None else (wrong, own.get(wrong), saved.get(wrong))


def probe_table(prior: LatentPrior) -> Table | None:
    """Rows with values from training, to test a loaded model; None if a custom kernel reads numbers."""
    columns: dict[str, list[Any]] = {}
    for leaf in prior.leaves():
        if isinstance(leaf, IdLeaf):
            columns[leaf.column] = leaf.levels[:PROBES]
    for leaf in prior.leaves():
        if isinstance(leaf, IdLeaf):
            continue
        shown_values = getattr(leaf, "shown_values", None)
        if shown_values is None and leaf.columns_read and not isinstance(leaf, Linear):
            return None
        for position, name in enumerate(leaf.columns_read):
            known = [0.0, 1.0] if shown_values is None else shown_values[:, position].tolist()
            columns.setdefault(name, known)
    columns = columns or {"row": [0.0]}  # a constant kernel reads none
    longest = max(map(len, columns.values()))
    return Table({name: list(itertools.islice(itertools.cycle(known), longest)) for name, known in columns.items()})


def kernel_extras(prior: LatentPrior) -> dict[str, Any]:
    """Extra state of each leaf, fixed when it was bound, by its name in the prior; if used twice, its first name."""
    first: dict[Leaf, str] = {}
    named = [(name, first.setdefault(leaf, name), leaf) for name, leaf in _leaves(prior)]
    return {name: leaf.extra_state() | ({} if name == same else {SAME_AS: same}) for name, same, leaf in named}


def restore_kernels(prior: LatentPrior, extras: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Bind the kernels of a new prior from `kernel_extras` and the tensors of the prior."""
    leaves = _leaves(prior)
    if set(extras) != {name for name, _ in leaves}:
        raise ValueError("the parts of the kernel do not match its text")
    restored: dict[str, Leaf] = {}
    for name, leaf in leaves:
        same = extras[name].get(SAME_AS)
        if same is None:
            leaf.restore(extras[name], under(name, tensors))
            restored[name] = leaf
            continue
        if same not in restored or restored[same].text() != leaf.text():
            raise ValueError(f"{leaf.text()} must be another part of the kernel, got {same!r:.80}")
        parent, _, own = name.rpartition(".")
        setattr(prior.get_submodule(parent), own, restored[same])


def _leaves(prior: LatentPrior) -> list[tuple[str, Leaf]]:
    """Leaves by all their names: an expression may contain the same object twice."""
    modules = prior.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in modules if isinstance(module, Leaf)]


def restore_learned_dims(prior: LatentPrior, tensors: dict[str, Tensor]) -> None:
    """Set the dimensions that the fit chose for `Learned` kernels."""
    for name, leaf in _leaves(prior):
        if isinstance(leaf, Learned) and leaf.open_dim:
            leaf.choose_dim(tensors[f"{name}.x"].shape[1])


def check_same_kernel(given: Groups, saved: list[list[Any]], path: Any) -> None:
    """Raise MismatchError unless the kernel given to load() has the text of the fitted one."""
    if group_texts(given) != saved:
        raise MismatchError(f"{path} was fitted with the kernel {saved}, got {group_texts(given)}; pass the same one")


def load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], path: Any) -> None:
    """load_state_dict with one clear error, not a list of keys, if the networks do not match."""
    mismatch = _first_mismatch(module, tensors)
    if mismatch is not None:
        wrong, got, expected = mismatch
        raise MismatchError(
            f"the networks do not fit the weights in {path} ({wrong}: expected {expected}, got {got}); "
            "pass the encoder and decoder the model was fitted with"
        )
    for name, value in module.state_dict().items():
        if tensors[name].dtype != value.dtype:
            raise ValueError(f"{name} is {tensors[name].dtype}, expected {value.dtype}")
    check_finite(tensors, module.state_dict())
    module.load_state_dict(tensors)


def check_value_noise(found: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """The saved covariance of the noise of values, or None; ValueError if it is not a covariance."""
    if found is None:
        return None
    if tuple(found.shape) != (math.prod(shape),) * 2 or found.dtype != torch.float64 or not found.isfinite().all():
        raise ValueError(f"the covariance of the noise of {math.prod(shape)} values is {tuple(found.shape)}")
    if torch.linalg.cholesky_ex(found).info != 0:
        raise ValueError("the covariance of the noise of values is not positive definite")
    return found


def check_same_likelihood(given: Likelihood, saved: dict[str, Any]) -> None:
    """Raise MismatchError unless kind and network weights are the same; learned parameters may differ."""
    config = given.config()
    for what, key in (("likelihood", lambda config: config["name"]), ("feature network", _network_digest)):
        if key(config) != key(saved):
            raise MismatchError(
                f"the model was fitted with the {what} {key(saved)}, got {key(config)}; pass the one it was fitted with"
            )


def _network_digest(likelihood: dict[str, Any]) -> str | None:
    return likelihood.get("network", {}).get("sha256")
