"""Text about what a kernel learned. It is stored in model files, so it can be shown without loading the model."""

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


def describe_fit(model: GPPVAE) -> dict[str, Any]:
    """The kernel as written, learned parameters of its parts, and values of its columns, as JSON values."""
    return {"kernel": kernel_text(model), "learned": kernel_rows(model), "columns": column_rows(model)}


def kernel_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(part of the kernel, learned parameters) in the order of the kernel; each group ends with its latent noise.

    Where members of an ensemble differ, the range of their values is shown.
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
            seen[name] += 1  # a kernel may contain the same part several times
            words = (learned_words(*parts) or "nothing to learn") + kernel_label(model, parts[0])
            rows.append((of + name + (f" ({seen[name]})" if seen[name] > 1 else ""), words))
        noise = _numbers(*(group.alpha for group in copies))
        rows.append((f"{of}latent noise", f"variance {noise}{noise_label(model)}"))
    return rows


def _parts(kernel: Kernel) -> list[Leaf | Scale]:
    return [part for part in kernel.modules() if isinstance(part, (Leaf, Scale))]


def noise_label(model: GPPVAE) -> str:
    """A label for latent noise that was fixed, or that the inference does not identify."""
    trained = [phase["inference"] for phase in model.resolved_["phases"] if phase["lr"].get("noise", 0.0) > 0]
    if not trained:
        return " (fixed, not learned)"
    identified = [name not in INFERENCES or INFERENCES[name].identifies_noise for name in trained]
    return "" if any(identified) else " (not identified by this inference)"


def kernel_label(model: GPPVAE, part: Leaf | Scale) -> str:
    """A label for a part of the kernel whose parameters were not trained."""
    own = [parameter for parameter in part.parameters(recurse=isinstance(part, Leaf)) if parameter.numel()]
    if not own:
        return ""
    trained = any(phase["lr"].get("prior", 0.0) > 0 for phase in model.resolved_["phases"])
    frozen = not any(parameter.requires_grad for parameter in own)
    if frozen and isinstance(part, StationaryLeaf) and not part.fixed:
        return " (found before training, then fixed)"  # by the linear start: see estimator/plan.py
    return " (fixed, not learned)" if frozen or not trained else ""


def kernel_text(model: GPPVAE) -> str:
    """The kernel as written, group by group."""
    kernels = model.prior_.written_kernels
    texts = ["no kernel" if kernel is None else as_written(kernel) for kernel in kernels]
    if len(kernels) == 1:
        return texts[0]
    return "; ".join(f"{n} latents: {text}" for n, text in zip(model.prior_.written_sizes, texts, strict=True))


def as_written(kernel: Kernel) -> str:
    """The kernel without the amplitudes of 1 that every summand gets by default."""
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
    """Learned parameters of a part of the kernel, or of the same part of several kernels; empty if it has none."""
    every = [part.learned_numbers() for part in parts]
    return ", ".join(parts[0].in_words({name: _numbers(*(one[name] for one in every)) for name in every[0]}))


def _numbers(*values: Tensor) -> str:
    """Numbers, each as one value or as its range over the tensors."""
    each = torch.stack([value.detach().flatten().double() for value in values])
    ends = [
        (f"{low:.4g}", f"{high:.4g}") for low, high in zip(each.amin(0).tolist(), each.amax(0).tolist(), strict=True)
    ]
    return ", ".join(low if low == high else f"{low} to {high}" for low, high in ends)


def column_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(column, its ids or range of values), in the order of the kernel."""
    found: dict[str, str] = {}
    for leaf in model.prior_.leaves():
        if isinstance(leaf, IdLeaf):
            names = ", ".join(natural_order(leaf.levels)[:4]) + (", ..." if len(leaf.levels) > 4 else "")
            found[leaf.column] = f"{len(leaf.levels)} ids ({names})"
        for position, name in enumerate(leaf.columns_read):
            found.setdefault(name, _span(leaf, position))
    return list(found.items())


def natural_order(names: Iterable[str]) -> list[str]:
    """Names in natural order: 2 before 10."""
    return sorted(names, key=lambda name: [(word, len(digits), digits) for word, digits in PIECES.findall(name)])


def _span(leaf: Leaf, position: int) -> str:
    if not isinstance(leaf, InducingLeaf) or leaf.rank == 0:
        return "numbers"
    values = leaf.shown_values[:, position]
    series = isinstance(leaf, StationaryLeaf) and leaf.series is not None
    count = "" if series else f" ({leaf.rank} {'values' if leaf.complete else 'inducing points'})"
    return f"numbers from {float(values.min()):g} to {float(values.max()):g}{count}"
