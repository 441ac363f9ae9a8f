"""What a model has learned, in words: stored in model files, to be shown without loading the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gppvae.inference import INFERENCES
from gppvae.kernels import IdLeaf, InducingLeaf, Kernel, Leaf, Scale, Sum
from gppvae.kernels.stationary import StationaryLeaf

if TYPE_CHECKING:
    from gppvae.estimator.gppvae import GPPVAE

PIECES = re.compile(r"([^0-9]*)([0-9]*)")  # text, then digits


def described(model: GPPVAE) -> dict[str, Any]:
    """The kernel as written, what its parts learned, and what is known of the columns, as JSON values."""
    return {"kernel": kernel_text(model), "learned": kernel_rows(model), "columns": column_rows(model)}


def kernel_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(part of the kernel, what it learned), left to right, group by group, each followed by its latent noise.

    Numbers that differ between the members of an ensemble are shown from the least to the largest.
    """
    prior = model.prior_
    rows, several = [], len(prior.written_groups) > 1
    for number, (copies, n_latents) in enumerate(zip(prior.written_groups, prior.written_sizes, strict=True)):
        of = f"group {number + 1} ({n_latents} latents): " if several else ""
        kernels = [group.kernel for group in copies if group.kernel is not None]
        if not kernels:
            rows.append((f"{of}no kernel", "what no column explains, variance 1"))
            continue
        seen: Counter[str] = Counter()
        for parts in zip(*map(_parts, kernels), strict=True):  # the same part of every member's kernel
            name = _name(parts[0])
            seen[name] += 1  # a kernel may have the same part several times
            words = (learned_words(*parts) or "nothing to learn") + kernel_label(model, parts[0])
            rows.append((of + name + (f" ({seen[name]})" if seen[name] > 1 else ""), words))
        noise = _numbers(*(group.alpha for group in copies))
        rows.append((f"{of}latent noise", f"variance {noise}{noise_label(model)}"))
    return rows


def _parts(kernel: Kernel) -> list[Leaf | Scale]:
    return [part for part in kernel.modules() if isinstance(part, (Leaf, Scale))]


def noise_label(model: GPPVAE) -> str:
    """A label for latent noise that was not learned: an inference may fix it, or not identify it."""
    trained = [phase["inference"] for phase in model.resolved_["phases"] if phase["lr"].get("noise", 0.0) > 0]
    if not trained:
        return " (fixed, not learned)"
    blind = [name for name in trained if name in INFERENCES and not INFERENCES[name].identifies_noise]
    return " (not identified by this inference)" if len(blind) == len(trained) else ""


def kernel_label(model: GPPVAE, part: Leaf | Scale) -> str:
    """A label for a part of the kernel whose parameters were not trained."""
    own = [parameter for parameter in part.parameters(recurse=isinstance(part, Leaf)) if parameter.numel()]
    if not own:
        return ""
    trained = any(phase["lr"].get("prior", 0.0) > 0 for phase in model.resolved_["phases"])
    still = not any(parameter.requires_grad for parameter in own)
    if still and isinstance(part, StationaryLeaf) and not part.fixed:
        return " (found before training, then fixed)"  # by the linear start: see estimator/plan.py
    return " (fixed, not learned)" if still or not trained else ""


def kernel_text(model: GPPVAE) -> str:
    """The kernel as written; groups of latents one after the other."""
    kernels = model.prior_.written_kernels
    texts = ["no kernel" if kernel is None else as_written(kernel) for kernel in kernels]
    if len(kernels) == 1:
        return texts[0]
    return "; ".join(f"{n} latents: {text}" for n, text in zip(model.prior_.written_sizes, texts, strict=True))


def as_written(kernel: Kernel) -> str:
    """The kernel without the amplitudes of 1 that every summand of a sum has by itself."""
    if not isinstance(kernel, Sum):
        return kernel.text()
    left, right = (_summand(part) for part in (kernel.left, kernel.right))
    return f"{left} + {f'({right})' if isinstance(kernel.right, Sum) else right}"


def _summand(kernel: Kernel) -> str:
    if isinstance(kernel, Scale) and kernel.initial == 1.0 and not isinstance(kernel.kernel, Scale | Sum):
        return kernel.kernel.text()
    return as_written(kernel)


def _name(part: Leaf | Scale) -> str:
    return part.text() if isinstance(part, Leaf) else f"factor before {part.kernel.text()}"


def learned_words(*parts: Leaf | Scale) -> str:
    """What a part of the kernel learned, or the same part of several kernels; empty where there is nothing to learn."""
    every = [part.learned_numbers() for part in parts]
    return ", ".join(parts[0].in_words({name: _numbers(*(one[name] for one in every)) for name in every[0]}))


def _numbers(*values: Tensor) -> str:
    """Numbers, each as one or, where it differs between the tensors, from the least to the largest."""
    each = torch.stack([value.detach().flatten().double() for value in values])
    ends = [
        (f"{low:.4g}", f"{high:.4g}") for low, high in zip(each.amin(0).tolist(), each.amax(0).tolist(), strict=True)
    ]
    return ", ".join(low if low == high else f"{low} to {high}" for low, high in ends)


def column_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(column, what the model knows of it), in the order of the kernel."""
    found: dict[str, str] = {}
    for leaf in model.prior_.leaves():
        if isinstance(leaf, IdLeaf):
            names = ", ".join(natural_order(leaf.levels)[:4]) + (", ..." if len(leaf.levels) > 4 else "")
            found[leaf.column] = f"{len(leaf.levels)} ids ({names})"
        for position, name in enumerate(leaf.columns_read):
            found.setdefault(name, _span(leaf, position))
    return list(found.items())


def natural_order(names: Iterable[str]) -> list[str]:
    """Names in the order that people expect: 2 before 10."""
    return sorted(names, key=lambda name: [(word, len(digits), digits) for word, digits in PIECES.findall(name)])


def _span(leaf: Leaf, position: int) -> str:
    if not isinstance(leaf, InducingLeaf) or leaf.rank == 0:
        return "numbers"
    values = leaf.shown_values[:, position]
    series = isinstance(leaf, StationaryLeaf) and leaf.series is not None
    count = "" if series else f" ({leaf.rank} {'values' if leaf.complete else 'inducing points'})"
    return f"numbers from {float(values.min()):g} to {float(values.max()):g}{count}"
