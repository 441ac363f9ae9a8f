"""Covariance functions over named columns, as features that survive + and *."""

from gppvae.kernels.base import Kernel, Leaf, Product, Scale, Sum, Term, with_amplitudes
from gppvae.kernels.ids import Categorical, FreeForm, IdLeaf, Learned
from gppvae.kernels.numeric import Constant, InducingLeaf, Linear, NumericLeaf
from gppvae.kernels.parse import own_classes, parse_kernel
from gppvae.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic

__all__ = [
    "RBF",
    "Categorical",
    "Constant",
    "FreeForm",
    "IdLeaf",
    "InducingLeaf",
    "Kernel",
    "Leaf",
    "Learned",
    "Linear",
    "Matern",
    "NumericLeaf",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scale",
    "Sum",
    "Term",
    "own_classes",
    "parse_kernel",
    "with_amplitudes",
]
