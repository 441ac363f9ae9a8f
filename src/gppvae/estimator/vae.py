"""The plain VAE, z ~ N(0, I): the baseline of a GPPVAE."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.data.arrays import to_input_layout
from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.header import checked_content
from gppvae.data.run_files import model_file
from gppvae.data.table import Rows
from gppvae.estimator.base import Estimator
from gppvae.estimator.checks import MAX_EPOCHS, MAX_WIDTH, number, whole
from gppvae.estimator.saving import check_network_sizes, load_weights, save_model
from gppvae.estimator.settings import LATENTS
from gppvae.estimator.validation import elbo
from gppvae.inference import Inference
from gppvae.inference.phase import MAX_RATE, Phase
from gppvae.likelihoods import Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.callbacks import Callback
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import RunFolder
from gppvae.training.validated import Validated


@dataclass(eq=False, repr=False)
class VAE(Estimator):
    """Variational autoencoder with independent latents: a model whose latents have no kernel. Arguments as in GPPVAE.

    Args:
        latent_dim: L.  epochs: passes over the data.  lr: learning rate.
        average: decay of a running average of the parameters, which replaces them at the end (0: none).

    Example:
        >>> import numpy as np
        >>> from gppvae import VAE
        >>> samples = np.random.default_rng(0).normal(size=(40, 6))
        >>> model = VAE(latent_dim=2, epochs=2).fit(samples, progress=False)
        >>> model.encode(samples).shape, model.sample(3).shape
        ((40, 2), (3, 6))
    """

    kind: ClassVar[str] = "vae"

    latent_dim: int = LATENTS
    _: KW_ONLY
    epochs: int = 100
    lr: float = 1e-3
    average: float = 0.0
    batch_size: int | None = 128

    def fit(
        self,
        samples: Any,
        y: Any = None,
        *,
        validation: Any | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
        checkpoint_seconds: float = 30.0,
        callbacks: Sequence[Callback] = (),
    ) -> VAE:
        """Fit to samples.

        Args:
            samples: array-like (see gppvae.data.arrays.Samples).  y: ignored; for pipelines of scikit-learn.
            validation: samples for the log and early stopping.  out: run folder.  progress: show progress bars.
            checkpoint_seconds: minimum time between checkpoints.  callbacks: as in GPPVAE.fit.
        """
        folder = None if out is None else RunFolder(out)
        with self._restored_on_error():
            options = {"progress": progress, "checkpoint_seconds": checkpoint_seconds, "callbacks": callbacks}
            self._fit(samples, validation, folder, **options)
        self._save_run(folder)
        return self

    def _fit(self, samples: Any, validation: Any, folder: RunFolder | None, **options: Any) -> None:
        """`fit` but for the model file; `options` are arguments of `_train`."""
        self._check_settings()
        data = self._training_samples(samples)
        self.shape_ = data.shape
        model = self._build(data.shape)
        rates = {"encoder": self.lr, "decoder": self.lr}
        phases = [Phase("vae", "vae", self.epochs, rates, average=self.average)]
        held_out = None if validation is None else self._batches(validation)

        @torch.no_grad()
        def validate(inference: Inference, train: Epoch) -> Validated:
            assert held_out is not None
            bound = elbo(model.autoencoder, replace(held_out, world=train.world))
            return Validated.by_one_number("valid_nelbo", -bound)

        check = None if held_out is None else validate
        self._train(model, phases, data, Rows({}, len(data)), folder, check, **options)
        self.model_ = model

    def _check_settings(self) -> None:
        super()._check_settings()
        whole("epochs", self.epochs, 0, MAX_EPOCHS)
        whole("latent_dim", self.latent_dim, 1, MAX_WIDTH)
        number("lr", self.lr, 0.0, MAX_RATE, "0.001")
        number("average", self.average, 0.0, 1.0, "0.999")

    @torch.no_grad()
    def _probe(
        self, model: GPPriorVAE, rows: Rows, y: Tensor, mask: Tensor | None, weights: LatentPosterior | None
    ) -> list[Tensor]:
        device = self._torch_device()
        return [model.autoencoder.reconstruct(y.to(device), None if mask is None else mask.to(device))]

    def _build(self, shape: tuple[int, ...]) -> GPPriorVAE:
        prior = LatentPrior([(None, self.latent_dim)]).to(self._gp_device())
        return GPPriorVAE(self._build_autoencoder(shape, [self.latent_dim]), prior)

    def score(self, samples: Any, y: Any = None) -> float:
        """Mean evidence lower bound per sample, in nats; higher is better."""
        return elbo(self._autoencoder, self._batches(samples))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import TransformerTags

        tags = super().__sklearn_tags__()
        tags.transformer_tags = TransformerTags(preserves_dtype=["float32"])
        return tags

    def transform(self, samples: Any) -> np.ndarray:
        """Means of the latents, (N, latent_dim), for scikit-learn pipelines."""
        mean = self.encode(samples)
        assert isinstance(mean, np.ndarray)
        return mean

    def fit_transform(self, samples: Any, y: Any = None) -> np.ndarray:
        """`fit`, then `transform` of the same samples."""
        return self.fit(samples, y).transform(samples)

    @torch.no_grad()
    def sample(self, n_samples: int = 1, seed: int | None = None) -> np.ndarray:
        """Draw samples from the prior, (n_samples, ...), in the shape of the training samples."""
        whole("n_samples", n_samples, 1)
        generator = torch.Generator().manual_seed(derive_seed(self._seed_of(seed), 2))
        z = torch.randn(n_samples, self.latent_dim, generator=generator)
        decoded = self._autoencoder.likelihood.mean(self._autoencoder.decode(z))
        return to_input_layout(decoded.cpu().numpy(), self.layout_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path`."""
        save_model(path, with_prefix("model", self._fitted_model.state_dict()), self._meta())

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
        """Load a saved model; custom modules must be given again (those of a `likelihood` only for score())."""
        again = {"encoder": encoder, "decoder": decoder, "likelihood": likelihood}
        self, tensors, _ = cls._opened(path, again, device)
        file, state = model_file(path), under("model", tensors)
        if encoder is None:
            with checked_content(file):
                check_network_sizes(self, [self.latent_dim], state)
        model = self._build(self.shape_)
        with checked_content(file):
            load_weights(model, state, path)
            self.model_ = model
            if not self._probe(model, Rows({}, 1), torch.zeros(1, *self.shape_), None, None)[0].isfinite().all():
                raise ValueError("its reconstructions are not finite")
        return self
