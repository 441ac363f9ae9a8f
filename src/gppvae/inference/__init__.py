"""Ways to fit the model. Each leaves gradients in place, once per optimiser step, for the one training loop."""

from gppvae.inference.base import Inference, LossTerms
from gppvae.inference.exact import Exact
from gppvae.inference.fixed_latents import FixedLatents
from gppvae.inference.global_ import Distill, Global
from gppvae.inference.independent import Independent
from gppvae.inference.minibatch import Minibatch
from gppvae.inference.posterior_coding import PosteriorCoding

INFERENCES: dict[str, type[Inference]] = {
    cls.name: cls for cls in (Independent, FixedLatents, Exact, Minibatch, PosteriorCoding, Global, Distill)
}

__all__ = [
    "INFERENCES",
    "Distill",
    "Exact",
    "FixedLatents",
    "Global",
    "Independent",
    "Inference",
    "LossTerms",
    "Minibatch",
    "PosteriorCoding",
]
