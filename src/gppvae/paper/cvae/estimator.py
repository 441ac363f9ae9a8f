"""The conditional VAE as an estimator: networks that are told the view, one latent per object."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.estimator.base import Estimator
from gppvae.estimator.checks import whole
from gppvae.estimator.saving import load_weights, save_model
from gppvae.estimator.settings import LATENTS
from gppvae.estimator.validation import same_length
from gppvae.inference import Inference
from gppvae.inference.phase import Phase
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.paper.cvae.inference import Conditional, conditional_elbo
from gppvae.paper.cvae.model import condition_rows, conditions_of, decode_given, encode_given, view_conditions
from gppvae.paper.cvae.networks import conditional_networks
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import RunFolder
from gppvae.training.loop import Validate
from gppvae.training.validated import Validated


@dataclass(eq=False, repr=False)
class CVAE(Estimator):
    """Conditional VAE (Sohn et al. 2015) with the view as the condition. Other arguments as in VAE.

    Args:
        view: column of views.
        period: of a numeric view column, whose sine and cosine are the condition; None for a one-hot code.
        latent_dim: L.  epochs: passes over the data.  lr: learning rate.
        average: decay of a running average of the weights, taken over at the end (0: none).
    """

    kind: ClassVar[str] = "cvae"

    view: str
    period: float | None = None
    latent_dim: int = LATENTS
    _: KW_ONLY
    network: str = "conv"
    epochs: int = 100
    lr: float = 1e-3
    average: float = 0.0
    pixel_var: float | None = 0.01
    batch_size: int | None = 128

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
        whole("epochs", self.epochs, 0)
        rows_table, data = Table(table), self._training_samples(samples)
        same_length(data, rows_table)
        self.shape_ = data.shape
        self.views_: list[str] | None = None
        if self.period is None:
            self.views_ = [str(level) for level in rows_table.levels(self.view)]
        rows = condition_rows(self._conditions(rows_table))
        model = self._build(data.shape)
        rates = {"encoder": self.lr, "decoder": self.lr}
        phases = [Phase("cvae", Conditional, self.epochs, rates, average=self.average)]
        folder = None if out is None else RunFolder(out)
        check = None if validation is None else self._validator(model.autoencoder, *validation)
        self._train(model, phases, data, rows, folder, check, progress, checkpoint_seconds)
        self.model_ = model
        self._save_run(folder)
        return self

    def _validator(self, model: Autoencoder, samples: Any, table: Any) -> Validate:
        """The bound of samples that are not trained on, given their views."""
        data, rows = self._samples(samples), condition_rows(self._conditions(Table(table)))
        data.check()
        held_out = Epoch(data, rows, self._rows_per_batch, None, self._torch_device())

        @torch.no_grad()
        def validate(inference: Inference, train: Epoch) -> Validated:
            bound = conditional_elbo(model, replace(held_out, world=train.world))
            return Validated.by_one_number("valid_nelbo", -bound)

        return validate

    def _conditions(self, table: Table) -> np.ndarray:
        return view_conditions(table, self.view, self.period, self.views_)

    def _build(self, shape: tuple[int, ...]) -> GPPriorVAE:
        n_conditions = 2 if self.period is not None else len(self.views_ or [])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            networks = conditional_networks(self.network, shape, self.latent_dim, n_conditions, self.width)
        autoencoder = Autoencoder(*networks, self._make_likelihood()).to(self._torch_device())
        return GPPriorVAE(autoencoder, LatentPrior([(None, self.latent_dim)]).to(self._gp_device()))

    @torch.no_grad()
    def encode_views(self, samples: Any, table: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of q(z | y, view), (N, latent_dim) each."""
        autoencoder, data = self._autoencoder, self._samples(samples)
        data.check()
        rows = condition_rows(self._conditions(Table(table)))
        epoch = Epoch(data, rows, self._rows_per_batch, None, self._torch_device())
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path`."""
        tensors = with_prefix("model", self._fitted_model.state_dict())
        save_model(path, tensors, self._meta() | {"views": self.views_})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | None = None) -> CVAE:
        """A saved model."""
        self, tensors, meta = cls._opened(path, {}, device)
        self.views_ = meta["views"]
        self.model_ = self._build(self.shape_)
        load_weights(self.model_, under("model", tensors), path)
        return self
