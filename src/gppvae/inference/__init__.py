"""Ways to fit the model. Each yields to the one training loop with gradients in place, once per optimiser step."""

from __future__ import annotations

from typing import Any

from gppvae.inference.base import Inference, LossTerms, draw, neg_entropy, recon_nll, sum_rows
from gppvae.inference.exact import Exact
from gppvae.inference.fixed_latents import FixedLatents
from gppvae.inference.global_ import Distill, Global
from gppvae.inference.independent import Independent
from gppvae.inference.leave_out import LeaveOut
from gppvae.inference.minibatch import Minibatch
from gppvae.inference.phase import Budget, Phase
from gppvae.inference.posterior_coding import PosteriorCoding

INFERENCES: dict[str, type[Inference]] = {
    cls.name: cls for cls in (Global, LeaveOut, Minibatch, PosteriorCoding, Exact, Independent, FixedLatents, Distill)
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
    "LeaveOut",
    "LossTerms",
    "Minibatch",
    "Phase",
    "PosteriorCoding",
    "draw",
    "find_inference",
    "neg_entropy",
    "recon_nll",
    "sum_rows",
]


def find_inference(named: Any) -> type[Inference]:
    """The class of this name, or the class itself."""
    if isinstance(named, type) and issubclass(named, Inference):
        if INFERENCES.get(named.name, named) is not named:
            raise ValueError(f"an inference class needs a name of its own, got {named.name!r}; set another name")
        return named
    if not isinstance(named, str) or named not in INFERENCES:
        raise ValueError(
            f"inference must be auto, one of {', '.join(INFERENCES)} or a class, got {named!r}; see docs/inference.md"
        )
    return INFERENCES[named]
