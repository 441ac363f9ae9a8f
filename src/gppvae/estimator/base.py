"""What both estimators share: checked settings, the autoencoder, encoding, the fit itself."""

from __future__ import annotations

import abc
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.estimator.outputs import Folder, Outputs
from gppvae.likelihoods import Gaussian, Likelihood, make_likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import NETWORKS, build_networks, check_networks
from gppvae.training.distributed import current_world
from gppvae.training.folder import RunFolder
from gppvae.training.loop import Settings, Trainer, Validate
from gppvae.training.phases import Phase


class NotFittedError(ValueError):
    """The estimator was asked before fit()."""


class Estimator(abc.ABC):
    """Common ground of GPPVAE and VAE. The constructor only stores; fitted values end in an underscore."""

    def __init__(
        self,
        latent_dim: int,
        network: str,
        width: int | None,
        encoder: nn.Module | None,
        decoder: nn.Module | None,
        likelihood: str | dict[str, Any] | Likelihood,
        pixel_var: float,
        batch_size: int,
        patience: int | None,
        validate_every: int | None,
        channels: str,
        scale: float | None,
        missing: str,
        seed: int,
        device: str | None,
    ) -> None:
        self.latent_dim, self.network, self.width = latent_dim, network, width
        self.encoder, self.decoder = encoder, decoder
        self.likelihood, self.pixel_var, self.batch_size = likelihood, pixel_var, batch_size
        self.patience, self.validate_every = patience, validate_every
        self.channels, self.scale, self.missing = channels, scale, missing
        self.seed, self.device = seed, device
        self.history_: list[dict[str, Any]] = []
        self.skipped_steps_ = 0
        self.shape_: tuple[int, ...] = ()
        self.fit_seconds_ = 0.0

    # -- to be said by each estimator

    @abc.abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path`."""

    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """Constructor arguments as JSON values: what config.json and the model file hold."""

    @property
    @abc.abstractmethod
    def _autoencoder(self) -> Autoencoder:
        """The fitted networks, or NotFittedError."""

    # -- checks

    def _check_settings(self) -> None:
        _whole("latent_dim", self.latent_dim, 1)
        _whole("batch_size", self.batch_size, 1)
        if self.width is not None:
            _whole("width", self.width, 1)
        if self.network not in NETWORKS:
            raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {self.network!r}")
        if (self.encoder is None) != (self.decoder is None):
            raise ValueError("expected encoder and decoder together, got only one of them; give both or neither")
        make_likelihood(self._likelihood_config())

    def _likelihood_config(self) -> dict[str, Any] | Likelihood:
        if isinstance(self.likelihood, (Likelihood, dict)):
            return self.likelihood
        return {"name": self.likelihood} | ({"pixel_var": self.pixel_var} if self.likelihood == Gaussian.name else {})

    def _samples(self, data: Any) -> Samples:
        samples = Samples(data, self.channels, self.scale, self.missing)
        if self.shape_ and samples.shape != self.shape_:
            raise ValueError(f"expected samples of shape {self.shape_} as in training, got {samples.shape}")
        return samples

    def _training_samples(self, data: Any) -> Samples:
        samples = Samples(data, self.channels, self.scale, self.missing)
        lowest, highest = samples.check(current_world())
        make_likelihood(self._likelihood_config()).check(lowest, highest, samples.integers)
        samples.keep_in_memory()
        return samples

    # -- building and running

    def _torch_device(self) -> torch.device:
        if self.device is not None:
            return torch.device(self.device)
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

    def _build_autoencoder(self, shape: tuple[int, ...]) -> Autoencoder:
        """Networks with weights drawn from the seed, on the device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.encoder is not None and self.decoder is not None:
                encoder, decoder = self.encoder, self.decoder
            else:
                encoder, decoder = build_networks(self.network, shape, self.latent_dim, self.width)
        check_networks(encoder, decoder, shape, self.latent_dim)
        likelihood = make_likelihood(self._likelihood_config())
        return Autoencoder(encoder, decoder, likelihood).to(self._torch_device())

    def _train(
        self,
        model: GPPriorVAE | Autoencoder,
        phases: list[Phase],
        samples: Samples,
        rows: Rows,
        folder: RunFolder | None,
        validate: Validate | None,
        progress: bool,
        checkpoint_seconds: float,
    ) -> Trainer:
        autoencoder = model.autoencoder if isinstance(model, GPPriorVAE) else model
        autoencoder.likelihood.ready(samples.shape)
        every = self.validate_every or max(1, max((phase.epochs for phase in phases), default=1) // 50)
        settings = Settings(self.seed, self.patience, every, checkpoint_seconds, progress)
        world = current_world()
        data = Epoch(samples, rows, self.batch_size, None, self._torch_device(), world=world)
        folder = None if folder is None else RunFolder(folder.path, world)
        trainer = Trainer(model, phases, data, settings, folder, validate)
        resume = False
        if folder is not None:
            facts = self._data_facts(samples, rows)
            config = self.settings() | {"phases": [phase.config() for phase in phases], "data": facts}
            resume = folder.prepare(config)
        trainer.run(resume)
        self.history_, self.skipped_steps_ = trainer.history, trainer.skipped_steps
        self.fit_seconds_ = trainer.seconds()
        return trainer

    def _keep(self, folder: RunFolder | None) -> None:
        """Save a finished fit in its run folder; no process goes on before the file is there."""
        if folder is not None:
            self.save(Path(folder.path))
            current_world().barrier()

    def _data_facts(self, samples: Samples, rows: Rows) -> dict[str, Any]:
        codes = {
            key: zlib.crc32(column.index.cpu().numpy().tobytes(), zlib.crc32(column.values.cpu().numpy().tobytes()))
            for key, column in rows.columns.items()
        }
        few, _ = samples.read(torch.linspace(0, len(samples) - 1, min(16, len(samples))).long().unique())
        probe = zlib.crc32(few.numpy().tobytes())
        return {"n_samples": len(samples), "shape": list(samples.shape), "columns": codes, "few_samples": probe}

    # -- what any autoencoder can do

    @torch.no_grad()
    def encode(
        self, samples: Any, return_std: bool = False, out: Folder = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Means of q(z | y), (N, latent_dim); with `return_std` also its standard deviations.

        Args:
            out: folder to write them into as mean.npy and std.npy; they come back as memory maps.
        """
        autoencoder, epoch = self._autoencoder, self._batches(samples)
        names = ("mean", "std") if return_std else ("mean",)
        with Outputs(out, names, (epoch.n_rows, self.latent_dim)) as arrays:
            for batch in epoch:
                mean, var = autoencoder.encode(batch.y)
                arrays.put(mean=mean, **({"std": var.sqrt()} if return_std else {}))
        return (arrays["mean"], arrays["std"]) if return_std else arrays["mean"]

    @torch.no_grad()
    def reconstruct(self, samples: Any, out: Folder = None) -> np.ndarray:
        """Samples through encoder mean and decoder, (N, *shape); with `out` in that folder's mean.npy."""
        autoencoder, epoch = self._autoencoder, self._batches(samples)
        with Outputs(out, ("mean",), (epoch.n_rows, *self.shape_)) as arrays:
            for batch in epoch:
                arrays.put(mean=autoencoder.likelihood.mean(autoencoder.decode(autoencoder.encode(batch.y)[0])))
        return arrays["mean"]

    def _batches(self, samples: Any) -> Epoch:
        data = self._samples(samples)
        data.check()
        return Epoch(data, Rows({}, len(data)), self.batch_size, None, self._torch_device())


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
