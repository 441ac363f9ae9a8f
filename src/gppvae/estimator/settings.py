"""Settings are the fields of an estimator; what is stored, shown and resumed is read from them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from torch import nn

from gppvae.inference import INFERENCES, Inference
from gppvae.inference.phase import Phase
from gppvae.kernels import IdLeaf, Kernel, own_classes, parse_kernel, with_amplitudes
from gppvae.likelihoods import Likelihood, own_likelihoods

Groups = list[tuple[Kernel | None, int]]
OPEN = 0  # number of latents that the fit chooses
# Arguments from which phases are written; the trained settings contain the phases instead.
WRITES_PHASES = ("inference", "schedule", "epochs", "warmup_epochs", "gp_epochs", "lr", "prior_lr", "average")
MODULES = ("encoder", "decoder")
AUTO = "auto"  # the inference is chosen from the data
LATENTS = 16  # of a VAE without a table


def as_json(value: Any) -> Any:
    """A constructor argument as JSON values; modules and classes by their names."""
    if isinstance(value, Kernel):
        return value.text()
    if isinstance(value, Likelihood):
        return value.config()
    if isinstance(value, Phase):
        return value.to_json()
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, type) and issubclass(value, Inference):
        return value.name
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def settings_of(estimator: Any) -> dict[str, Any]:
    """Constructor arguments as given, as JSON values, without those that have no effect.

    The device belongs to the machine, and explicit phases replace the arguments that phases are written from.
    """
    unused = {"device"} if getattr(estimator, "phases", None) is None else {"device", *WRITES_PHASES}
    return {item.name: as_json(getattr(estimator, item.name)) for item in fields(estimator) if item.name not in unused}


def custom_classes(estimator: Any) -> dict[str, list[str]]:
    """Names of custom classes, by constructor argument; a file can name them but not restore them."""
    kernels = _kernels_given(getattr(estimator, "kernel", None))
    found = {
        "kernel": [name for kernel in kernels for name in own_classes(kernel)],
        "encoder": [] if estimator.encoder is None else [type(estimator.encoder).__name__],
        "decoder": [] if estimator.decoder is None else [type(estimator.decoder).__name__],
        "likelihood": own_likelihoods(estimator.likelihood),
    }
    # By name, since a loaded model has only the names of inferences; find_inference rejects duplicate names.
    if getattr(estimator, "phases", None) is not None:
        trained = [phase["inference"] for phase in as_json(estimator.phases)]
        found["phases"] = [name for name in trained if name not in INFERENCES]
    elif hasattr(estimator, "inference"):
        found["inference"] = [name for name in as_json([estimator.inference]) if name not in (AUTO, *INFERENCES)]
    return {name: list(dict.fromkeys(classes)) for name, classes in found.items() if classes}


def _kernels_given(kernel: Any) -> list[Kernel]:
    """Kernel objects in the argument `kernel`; text can only name kernels of the package."""
    if isinstance(kernel, Kernel):
        return [kernel]
    entries = kernel if isinstance(kernel, Sequence) and not isinstance(kernel, str) else []
    return [entry[0] for entry in entries if isinstance(entry[0], Kernel)]


def check_given_again(own: dict[str, list[str]], given: dict[str, Any], path: Any, call: str) -> None:
    """Raise ValueError unless every custom class is given again.

    Args:
        own: `custom_classes` of the fit.  given: arguments of the call.  path: of the file or folder.
        call: name of the method, for the message.
    """
    named = isinstance(own, dict) and all(isinstance(classes, list) for classes in own.values())
    if not named or not all(isinstance(cls, str) for classes in own.values() for cls in classes):
        raise ValueError(f"{path} is damaged: expected the names of your own classes, got {own!r:.80}; fit again")
    missing = [name for name in own if name in given and given[name] is None]
    if missing:
        classes = ", ".join(dict.fromkeys(cls for name in missing for cls in own[name]))
        *most, last = (f"{name}=" for name in missing)
        wanted = f"{', '.join(most)} and {last}" if most else last
        raise ValueError(f"{path} was fitted with classes of your own ({classes}); pass {wanted} to {call}")


def arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments from `settings_of`; custom modules must be given again."""
    kept = {name: value for name, value in settings.items() if name not in MODULES}
    if kept.get("phases"):
        kept["phases"] = [Phase(**phase) for phase in kept["phases"]]
    if isinstance(kept.get("kernel"), list):
        kept["kernel"] = [tuple(group) for group in kept["kernel"]]
    return kept


def latent_groups(kernel: Any, latent_dim: int | None) -> Groups:
    """The groups of latents in `kernel`, with copies of the kernels, so that a fit does not change the given ones.

    Args:
        kernel: a Kernel or its text, or a list of (Kernel, text or None, number of latents).
        latent_dim: for one kernel, OPEN when None; for a list it must be the sum, or None.
    """
    if isinstance(kernel, (Kernel, str)):
        return [(_kernel(kernel), OPEN if latent_dim is None else latent_dim)]
    form = 'a kernel, or a list like [("RBF(age)", 12), (None, 4)]'
    if not isinstance(kernel, Sequence) or not kernel:
        raise TypeError(f"kernel must be {form}, got {kernel!r}")
    groups: Groups = []
    for entry in kernel:
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise TypeError(f"kernel must be {form}, got the entry {entry!r}")
        own, size = entry
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"a group needs a whole number of latents of at least 1, got {size!r} for {own}")
        groups.append((None if own is None else _kernel(own), int(size)))
    if all(own is None for own, _ in groups):
        raise ValueError("expected a kernel for at least one group of latents, got none; use VAE for none at all")
    total = sum(size for _, size in groups)
    if latent_dim not in (None, total):
        raise ValueError(f"the groups have {total} latents, got latent_dim={latent_dim}; leave latent_dim out")
    return groups


def _kernel(given: Kernel | str) -> Kernel:
    if isinstance(given, Kernel):
        return with_amplitudes(copy.deepcopy(given))
    if isinstance(given, str):
        return with_amplitudes(parse_kernel(given))
    raise TypeError(f"a kernel must be a Kernel or its text, got {type(given).__name__}; write for example 'RBF(age)'")


def group_texts(groups: Groups) -> list[list[Any]]:
    """(text of the kernel, number of latents) of each group."""
    return [[None if kernel is None else kernel.text(), size] for kernel, size in groups]


def groups_from_words(words: Sequence[str]) -> str | list[tuple[str | None, int]]:
    """The kernel from the command line: one text, or one per group of latents, "RBF(age): 12" or "none: 4"."""
    if len(words) == 1 and ":" not in words[0]:
        return words[0]
    groups: list[tuple[str | None, int]] = []
    for word in words:
        text, colon, number = word.rpartition(":")
        if not colon or not number.strip().isdigit():
            raise ValueError(
                f"expected a kernel and its number of latents, for example 'RBF(age): 12', got {word!r}; add the number"
            )
        groups.append((None if text.strip().lower() == "none" else text.strip(), int(number)))
    return groups


def id_columns(kernel: Any) -> list[str]:
    """Columns that the kernels read as ids, which tables must keep as text."""
    kernels = [own for own, _ in latent_groups(kernel, None) if own is not None]
    return [leaf.column for own in kernels for leaf in own.leaves() if isinstance(leaf, IdLeaf)]


def columns_of(groups: Groups) -> list[str]:
    """Names of the columns that the kernels of the groups read, each once."""
    return list(dict.fromkeys(name for kernel, _ in groups if kernel is not None for name in kernel.columns()))
