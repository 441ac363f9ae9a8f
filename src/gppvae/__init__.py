"""gppvae: variational autoencoders whose latents have a Gaussian process prior over the columns of a table."""

from gppvae.estimator import GPPVAE, VAE, Prediction
from gppvae.kernels import (
    RBF,
    Categorical,
    Constant,
    FreeForm,
    Kernel,
    Learned,
    Linear,
    Matern,
    Periodic,
    RationalQuadratic,
    parse_kernel,
)
from gppvae.training.phases import Phase

__version__ = "0.1.0"

__all__ = [
    "GPPVAE",
    "RBF",
    "VAE",
    "Categorical",
    "Constant",
    "FreeForm",
    "Kernel",
    "Learned",
    "Linear",
    "Matern",
    "Periodic",
    "Phase",
    "Prediction",
    "RationalQuadratic",
    "__version__",
    "parse_kernel",
]
