"""The plain VAE, z ~ N(0, I): what a GPPVAE is compared with and warmed up by."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.table import Rows
from gppvae.estimator.base import Estimator, NotFittedError, _whole
from gppvae.estimator.saving import constructor_arguments, load_model, load_weights, save_model
from gppvae.estimator.validation import elbo
from gppvae.inference import Inference
from gppvae.likelihoods import Likelihood
from gppvae.models.vae import Autoencoder
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import RunFolder
from gppvae.training.phases import Phase


class VAE(Estimator):
    """Variational autoencoder with independent latents. Arguments as in GPPVAE.

    Args:
        latent_dim: L.  epochs: passes over the data.  lr: learning rate.
        average: decay of a running average of the weights, taken over at the end (0: none).
    """

    def __init__(
        self,
        latent_dim: int = 16,
        *,
        network: str = "auto",
        width: int | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        likelihood: str | dict[str, Any] | Likelihood = "gaussian",
        pixel_var: float = 0.01,
        epochs: int = 100,
        lr: float = 1e-3,
        average: float = 0.0,
        batch_size: int = 128,
        patience: int | None = None,
        validate_every: int | None = None,
        channels: str = "first",
        scale: float | None = None,
        missing: str = "error",
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(
            latent_dim, network, width, encoder, decoder, likelihood, pixel_var, batch_size, patience, validate_every,
            channels, scale, missing, seed, device,
        )  # fmt: skip
        self.epochs, self.lr, self.average = epochs, lr, average
        self.model_: Autoencoder | None = None

    def fit(
        self,
        samples: Any,
        *,
        validation: Any | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
        checkpoint_seconds: float = 30.0,
    ) -> VAE:
        """Fit to samples; `validation` samples are for the log and early stopping, `out` is a run folder."""
        self._check_settings()
        _whole("epochs", self.epochs, 0)
        data = self._training_samples(samples)
        self.shape_ = data.shape
        model = self._build_autoencoder(data.shape)
        rates = {"encoder": self.lr, "decoder": self.lr}
        phases = [Phase("vae", "vae", self.epochs, rates, average=self.average)]
        held_out = None if validation is None else self._batches(validation)
        self.model_ = model

        @torch.no_grad()
        def validate(inference: Inference, train: Epoch) -> dict[str, float]:
            assert held_out is not None
            return {"valid_nelbo": -elbo(model, replace(held_out, world=train.world))}

        folder = None if out is None else RunFolder(out)
        check = None if held_out is None else validate
        self._train(model, phases, data, Rows({}, len(data)), folder, check, progress, checkpoint_seconds)
        self._keep(folder)
        return self

    @property
    def _autoencoder(self) -> Autoencoder:
        if self.model_ is None:
            raise NotFittedError("this VAE is not fitted yet; call fit() or load() first")
        return self.model_

    def score(self, samples: Any) -> float:
        """Mean evidence lower bound per sample, in nats; higher is better."""
        return elbo(self._autoencoder, self._batches(samples))

    @torch.no_grad()
    def sample(self, n_samples: int = 1, seed: int | None = None) -> np.ndarray:
        """New samples from the prior, (n_samples, *shape)."""
        _whole("n_samples", n_samples, 1)
        generator = torch.Generator().manual_seed(derive_seed(self.seed if seed is None else seed, 2))
        z = torch.randn(n_samples, self.latent_dim, generator=generator).to(self._torch_device())
        return self._autoencoder.likelihood.mean(self._autoencoder.decode(z)).cpu().numpy()

    def settings(self) -> dict[str, Any]:
        plain = (
            "latent_dim", "network", "width", "pixel_var", "epochs", "lr", "average", "batch_size", "patience",
            "validate_every", "channels", "scale", "missing", "seed",
        )  # fmt: skip
        likelihood = self.likelihood.config() if isinstance(self.likelihood, Likelihood) else self.likelihood
        own = {"likelihood": likelihood, "own_networks": self.encoder is not None}
        return {name: getattr(self, name) for name in plain} | own

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path`."""
        meta = {
            "kind": "vae",
            "settings": self.settings(),
            "shape": list(self.shape_),
            "history": self.history_,
        }
        save_model(path, with_prefix("model", self._autoencoder.state_dict()), meta)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        likelihood: Likelihood | None = None,
        device: str | None = None,
    ) -> VAE:
        """A saved model; modules of your own must be given again (those of a `likelihood` only for score())."""
        tensors, meta = load_model(path, "vae")
        settings = meta["settings"]
        if settings["own_networks"] and (encoder is None or decoder is None):
            raise ValueError(f"{path} was fitted with networks of your own; pass encoder= and decoder= to load()")
        self = cls(**constructor_arguments(settings, likelihood), encoder=encoder, decoder=decoder, device=device)
        self.shape_ = tuple(meta["shape"])
        model = self._build_autoencoder(self.shape_)
        load_weights(model, under("model", tensors), path)
        self.model_, self.history_ = model, meta["history"]
        return self
