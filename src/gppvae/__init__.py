"""gppvae: variational autoencoders whose latents have a Gaussian process prior over the columns of a table."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gppvae.estimator import GPPVAE, VAE, Explanation, Prediction
    from gppvae.inference import Inference, LossTerms, Phase
    from gppvae.kernels import (
        RBF,
        Categorical,
        Constant,
        FreeForm,
        IdLeaf,
        InducingLeaf,
        Kernel,
        Learned,
        Linear,
        Matern,
        NumericLeaf,
        Periodic,
        RationalQuadratic,
        parse_kernel,
    )
    from gppvae.likelihoods import Likelihood
    from gppvae.training.callbacks import Callback, LogMetrics

__version__ = "0.2.0"

# Threads that spin while waiting take the core from the one that works: two trainings on the same cores then hardly
# progress. Threads that sleep at once gain little from each other. A short spin avoids both (docs/benchmarks.md).
# Read when PyTorch is imported; values set by the user are kept.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
if not any(name in os.environ for name in WAITING):
    os.environ.update(WAITING)

__all__ = [
    "GPPVAE",
    "RBF",
    "VAE",
    "Callback",
    "Categorical",
    "Constant",
    "Explanation",
    "FreeForm",
    "IdLeaf",
    "InducingLeaf",
    "Inference",
    "Kernel",
    "Learned",
    "Likelihood",
    "Linear",
    "LogMetrics",
    "LossTerms",
    "Matern",
    "NumericLeaf",
    "Periodic",
    "Phase",
    "Prediction",
    "RationalQuadratic",
    "__version__",
    "parse_kernel",
]

# Where a name lives; kernels are everything else.
_HOMES = {
    "Callback": "training.callbacks",
    "Explanation": "estimator",
    "GPPVAE": "estimator",
    "Inference": "inference",
    "Likelihood": "likelihoods",
    "LogMetrics": "training.callbacks",
    "LossTerms": "inference",
    "Phase": "inference",
    "Prediction": "estimator",
    "VAE": "estimator",
}


def __getattr__(name: str) -> Any:
    # PyTorch takes two seconds to import: `gppvae --help` must not wait for it.
    if name not in __all__:
        raise AttributeError(f"module 'gppvae' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gppvae.{_HOMES.get(name, 'kernels')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
