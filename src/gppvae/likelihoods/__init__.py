"""Likelihoods p(y | decoder output)."""

from __future__ import annotations

from typing import Any

from gppvae.likelihoods.counts import COUNTS, NegativeBinomial, Poisson, counts_by_words
from gppvae.likelihoods.perceptual import Perceptual, perceptual_from_file
from gppvae.likelihoods.scaled import ScaledGaussian
from gppvae.likelihoods.values import PIXEL_VARS, VALUES, Bernoulli, Gaussian, Likelihood, make
from gppvae.likelihoods.vgg import VGG19

__all__ = [
    "PIXEL_VARS",
    "VGG19",
    "Bernoulli",
    "Gaussian",
    "Likelihood",
    "NegativeBinomial",
    "Perceptual",
    "Poisson",
    "ScaledGaussian",
    "counts_by_words",
    "make_likelihood",
    "own_likelihoods",
    "perceptual_from_file",
]

LIKELIHOODS: dict[str, type[Likelihood]] = VALUES | COUNTS | {cls.name: cls for cls in (ScaledGaussian, Perceptual)}


def make_likelihood(config: str | dict[str, Any] | Likelihood) -> Likelihood:
    """A likelihood from its name, from `config()` of another, or as given."""
    return make(config, LIKELIHOODS)


def own_likelihoods(likelihood: Any) -> list[str]:
    """Names of the classes in a likelihood that `make_likelihood` cannot rebuild; none for a name or a config."""
    parts = likelihood.modules() if isinstance(likelihood, Likelihood) else ()
    known = LIKELIHOODS.values()
    return [part.name for part in parts if isinstance(part, Likelihood) and type(part) not in known]
