"""What a model has learned, in words: stored in model files, to be shown without loading the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gppvae.inference import INFERENCES
from gppvae.kernels import IdLeaf, InducingLeaf, Kernel, Leaf, Learned, Scale, Sum
from gppvae.kernels.stationary import StationaryLeaf

if TYPE_CHECKING:
    from gppvae.estimator.gppvae import GPPVAE

PIECES = re.compile(r"([^0-9]*)([0-9]*)")  # text, then digits
MAX_NUMBERS = 4  # of one parameter of a kernel, to be shown


def described(model: GPPVAE) -> dict[str, Any]:
    """The kernel as written, what its parts learned, and what is known of the columns, as JSON values."""
    return {"kernel": kernel_text(model), "learned": kernel_rows(model), "columns": column_rows(model)}


def kernel_rows(model: GPPVAE) -> list[tuple[str, str]]:
    """(part of the kernel, what it learned), left to right, group by group, each followed by its latent noise."""
    rows, several = [], len(model.prior_.groups) > 1
    for number, group in enumerate(model.prior_.groups):
        of = f"group {number + 1} ({group.n_latents} latents): " if several else ""
        if group.kernel is None:
            rows.append((f"{of}no kernel", "what no column explains, variance 1"))
            continue
        parts = [part for part in group.kernel.modules() if isinstance(part, (Leaf, Scale))]
        rows += [
            (of + _name(part), (learned_words(part) or "nothing to learn") + kernel_label(model, part))
            for part in parts
        ]
        rows.append((f"{of}latent noise", f"variance {float(group.alpha.detach()):.4g}{noise_label(model)}"))
    return rows


def noise_label(model: GPPVAE) -> str:
    """A label for latent noise that was not learned: an inference may fix it, or not identify it."""
    trained = [phase["inference"] for phase in model.resolved_["phases"] if phase["lr"].get("noise", 0.0) > 0]
    if not trained:
        return " (fixed, not learned)"
    blind = [name for name in trained if name in INFERENCES and not INFERENCES[name].identifies_noise]
    return " (not identified by this inference)" if len(blind) == len(trained) else ""


def kernel_label(model: GPPVAE, part: Leaf | Scale) -> str:
    """A label for a part of the kernel whose parameters were not learned."""
    own = [parameter for parameter in part.parameters(recurse=isinstance(part, Leaf)) if parameter.numel()]
    if not own:
        return ""
    trained = any(phase["lr"].get("prior", 0.0) > 0 for phase in model.resolved_["phases"])
    return "" if trained and any(parameter.requires_grad for parameter in own) else " (fixed, not learned)"


def kernel_text(model: GPPVAE) -> str:
    """The kernel as written; groups of latents one after the other."""
    groups = model.prior_.groups
    texts = ["no kernel" if group.kernel is None else as_written(group.kernel) for group in groups]
    if len(groups) == 1:
        return texts[0]
    return "; ".join(f"{group.n_latents} latents: {text}" for group, text in zip(groups, texts, strict=True))


def as_written(kernel: Kernel) -> str:
    """The kernel without the amplitudes of 1 that every summand of a sum has by itself."""
    if not isinstance(kernel, Sum):
        return kernel.text()
    left, right = (_summand(part) for part in (kernel.left, kernel.right))
    return f"{left} + {f'({right})' if isinstance(kernel.right, Sum) else right}"


def _summand(kernel: Kernel) -> str:
    inner = kernel.kernel if isinstance(kernel, Scale) and kernel.initial == 1.0 else kernel
    return as_written(kernel if isinstance(inner, Scale | Sum) else inner)


def _name(part: Leaf | Scale) -> str:
    return part.text() if isinstance(part, Leaf) else f"factor before {part.kernel.text()}"


def learned_words(part: Leaf | Scale) -> str:
    """What a part of the kernel learned; empty where there is nothing to learn."""
    if isinstance(part, Scale):
        return f"{float(part.value.detach()):.4g}"
    if isinstance(part, Learned):
        size = float(part.vectors().detach().square().sum(1).mean())
        return f"{len(part.levels)} ids, vectors of length {part.dim}, mean variance {size:.4g}"
    if isinstance(part, StationaryLeaf):
        words = [f"length scale {_numbers(part.base.lengthscale)}"]
        words += [f"alpha {_numbers(part.base.alpha)}"] if hasattr(part.base, "alpha") else []
        return ", ".join([*words, f"{part.rank} {'basis functions' if part.series else 'inducing points'}"])
    words = [f"{len(part.levels)} levels"] if isinstance(part, IdLeaf) else []
    # Only small parameters are shown, under their names in the class.
    words += [f"{name} {_numbers(p)}" for name, p in part.named_parameters() if p.numel() <= MAX_NUMBERS]
    words += [f"{part.rank} inducing points"] if isinstance(part, InducingLeaf) else []
    return ", ".join(words)


def _numbers(values: Any) -> str:
    return ", ".join(f"{float(value):.4g}" for value in values.detach().flatten())


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
