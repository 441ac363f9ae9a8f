"""How the decoder's output becomes a distribution over samples."""

from __future__ import annotations

from typing import Any

from gppvae.likelihoods.perceptual import Perceptual, perceptual_from_file
from gppvae.likelihoods.values import PIXEL_VARS, VALUES, Bernoulli, Gaussian, Likelihood, NegativeBinomial, make
from gppvae.likelihoods.vgg import VGG19

__all__ = [
    "PIXEL_VARS",
    "VGG19",
    "Bernoulli",
    "Gaussian",
    "Likelihood",
    "NegativeBinomial",
    "Perceptual",
    "make_likelihood",
    "perceptual_from_file",
]

LIKELIHOODS: dict[str, type[Likelihood]] = VALUES | {Perceptual.name: Perceptual}


def make_likelihood(config: str | dict[str, Any] | Likelihood) -> Likelihood:
    """A likelihood from its name, from `config()` of another, or as given."""
    return make(config, LIKELIHOODS)
