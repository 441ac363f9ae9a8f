"""Covariance functions over named columns, as features that survive + and *."""

from gppvae.kernels.base import Constant, Kernel, Product, Scale, Sum
from gppvae.kernels.columns import Categorical, FreeForm, Learned, Linear
from gppvae.kernels.parse import parse_kernel
from gppvae.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic

__all__ = [
    "RBF",
    "Categorical",
    "Constant",
    "FreeForm",
    "Kernel",
    "Learned",
    "Linear",
    "Matern",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scale",
    "Sum",
    "parse_kernel",
]
