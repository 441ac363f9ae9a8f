"""Ways to fit the model. Each leaves gradients in place, once per optimiser step, for the one training loop."""

from __future__ import annotations

from typing import Any

from gppvae.inference.base import Inference, LossTerms
from gppvae.inference.exact import Exact
from gppvae.inference.fixed_latents import FixedLatents
from gppvae.inference.global_ import Distill, Global
from gppvae.inference.independent import Independent
from gppvae.inference.minibatch import Minibatch
from gppvae.inference.phase import Budget, Phase
from gppvae.inference.posterior_coding import PosteriorCoding

INFERENCES: dict[str, type[Inference]] = {
    cls.name: cls for cls in (Global, Minibatch, PosteriorCoding, Exact, Independent, FixedLatents, Distill)
}

__all__ = [
    "INFERENCES",
    "Budget",
    "Distill",
    "Exact",
    "FixedLatents",
    "Global",
    "Independent",
    "Inference",
    "LossTerms",
    "Minibatch",
    "Phase",
    "PosteriorCoding",
    "find_inference",
]


def find_inference(named: Any) -> type[Inference]:
    """The class of this name, or the class itself."""
    if isinstance(named, type) and issubclass(named, Inference):
        return named
    if not isinstance(named, str) or named not in INFERENCES:
        raise ValueError(
            f"inference must be one of {', '.join(INFERENCES)} or a class, got {named!r}; see docs/inference.md"
        )
    return INFERENCES[named]
