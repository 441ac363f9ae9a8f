"""GPPVAE and VAE: fit, predict, encode, save, with the habits of scikit-learn."""

from gppvae.estimator.explanation import Curve, Explanation, TermExplanation
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.impute import Imputation
from gppvae.estimator.prediction import Prediction
from gppvae.estimator.vae import VAE

__all__ = ["GPPVAE", "VAE", "Curve", "Explanation", "Imputation", "Prediction", "TermExplanation"]
