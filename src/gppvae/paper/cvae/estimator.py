"""The conditional VAE as an estimator: networks that are told the view, one latent per object."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.estimator.base import Estimator, NotFittedError, _whole
from gppvae.estimator.saving import load_model, load_weights, save_model
from gppvae.estimator.validation import same_length
from gppvae.inference import Inference
from gppvae.likelihoods import make_likelihood
from gppvae.models.vae import Autoencoder
from gppvae.paper.cvae.inference import Conditional, conditional_elbo
from gppvae.paper.cvae.model import condition_rows, conditions_of, decode_given, encode_given, view_conditions
from gppvae.paper.cvae.networks import conditional_networks
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import RunFolder
from gppvae.training.loop import Validate
from gppvae.training.phases import Phase


class CVAE(Estimator):
    """Conditional VAE (Sohn et al. 2015) with the view as the condition. Other arguments as in VAE.

    Args:
        view: column of views.
        period: of a numeric view column, whose sine and cosine are the condition; None for a one-hot code.
        latent_dim: L.  epochs: passes over the data.  lr: learning rate.
        average: decay of a running average of the weights, taken over at the end (0: none).
    """

    def __init__(
        self,
        view: str,
        period: float | None = None,
        latent_dim: int = 16,
        *,
        network: str = "conv",
        width: int | None = None,
        pixel_var: float = 0.01,
        epochs: int = 100,
        lr: float = 1e-3,
        average: float = 0.0,
        batch_size: int = 128,
        patience: int | None = None,
        validate_every: int | None = None,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(
            latent_dim, network, width, None, None, "gaussian", pixel_var, batch_size, patience,
            validate_every, "first", None, "error", seed, device,
        )  # fmt: skip
        self.view, self.period, self.epochs, self.lr, self.average = view, period, epochs, lr, average
        self.model_: Autoencoder | None = None
        self.views_: list[str] | None = None

    def fit(
        self,
        samples: Any,
        table: Any,
        *,
        validation: tuple[Any, Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
        checkpoint_seconds: float = 30.0,
    ) -> CVAE:
        """Fit to samples and the table that holds their views.

        `validation` (samples, table) is for the log and early stopping, `out` a run folder.
        """
        self._check_settings()
        _whole("epochs", self.epochs, 0)
        rows_table, data = Table(table), self._training_samples(samples)
        same_length(data, rows_table)
        self.shape_ = data.shape
        if self.period is None:
            self.views_ = [str(level) for level in rows_table.levels(self.view)]
        rows = condition_rows(self._conditions(rows_table))
        self.model_ = self._build_autoencoder(data.shape)
        rates = {"encoder": self.lr, "decoder": self.lr}
        phases = [Phase("cvae", Conditional, self.epochs, rates, average=self.average)]
        folder = None if out is None else RunFolder(out)
        check = None if validation is None else self._validator(self.model_, *validation)
        self._train(self.model_, phases, data, rows, folder, check, progress, checkpoint_seconds)
        if folder is not None:
            self.save(folder.path)
        return self

    def _validator(self, model: Autoencoder, samples: Any, table: Any) -> Validate:
        """The bound of samples that are not trained on, given their views."""
        data, rows = self._samples(samples), condition_rows(self._conditions(Table(table)))
        data.check()
        held_out = Epoch(data, rows, self.batch_size, None, self._torch_device())

        @torch.no_grad()
        def validate(inference: Inference, train: Epoch) -> dict[str, float]:
            return {"valid_nelbo": -conditional_elbo(model, replace(held_out, world=train.world))}

        return validate

    def _conditions(self, table: Table) -> np.ndarray:
        return view_conditions(table, self.view, self.period, self.views_)

    def _build_autoencoder(self, shape: tuple[int, ...]) -> Autoencoder:
        n_conditions = 2 if self.period is not None else len(self.views_ or [])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            networks = conditional_networks(self.network, shape, self.latent_dim, n_conditions, self.width)
        likelihood = make_likelihood(self._likelihood_config())
        return Autoencoder(*networks, likelihood).to(self._torch_device())

    @property
    def _autoencoder(self) -> Autoencoder:
        if self.model_ is None:
            raise NotFittedError("this CVAE is not fitted yet; call fit() or load() first")
        return self.model_

    @torch.no_grad()
    def encode_views(self, samples: Any, table: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of q(z | y, view), (N, latent_dim) each."""
        autoencoder, data = self._autoencoder, self._samples(samples)
        data.check()
        rows = condition_rows(self._conditions(Table(table)))
        epoch = Epoch(data, rows, self.batch_size, None, self._torch_device())
        parts = [encode_given(autoencoder, batch.y, conditions_of(batch.rows, batch.y)) for batch in epoch]
        mean, var = (torch.cat([part[i].cpu() for part in parts]).numpy() for i in (0, 1))
        return mean, var

    @torch.no_grad()
    def decode_views(self, z: np.ndarray, table: Any) -> np.ndarray:
        """Samples at latents (n, latent_dim) and the views of a table, (n, *shape)."""
        autoencoder = self._autoencoder
        latents = torch.from_numpy(np.asarray(z, dtype=np.float32)).to(self._torch_device())
        conditions = torch.from_numpy(self._conditions(Table(table))).to(latents)
        return autoencoder.likelihood.mean(decode_given(autoencoder, latents, conditions)).cpu().numpy()

    def settings(self) -> dict[str, Any]:
        names = (
            "view", "period", "latent_dim", "network", "width", "pixel_var", "epochs", "lr", "average", "batch_size",
            "seed",
        )  # fmt: skip
        stopping = {"patience": self.patience, "validate_every": self.validate_every}
        given = {name: value for name, value in stopping.items() if value is not None}
        return {name: getattr(self, name) for name in names} | given

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path`."""
        meta = {
            "kind": "cvae",
            "settings": self.settings(),
            "shape": list(self.shape_),
            "views": self.views_,
            "history": self.history_,
            "fit_seconds": self.fit_seconds_,
        }
        save_model(path, with_prefix("model", self._autoencoder.state_dict()), meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | None = None) -> CVAE:
        """A saved model."""
        tensors, meta = load_model(path, "cvae")
        self = cls(**meta["settings"], device=device)
        self.shape_, self.views_ = tuple(meta["shape"]), meta["views"]
        model = self._build_autoencoder(self.shape_)
        load_weights(model, under("model", tensors), path)
        self.model_, self.history_, self.fit_seconds_ = model, meta["history"], meta["fit_seconds"]
        return self
