"""The estimator people use: a VAE with a Gaussian process prior over the columns of a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.table import Table
from gppvae.estimator.base import Estimator, NotFittedError, _whole
from gppvae.estimator.cost import tell_cost
from gppvae.estimator.new_objects import add_objects
from gppvae.estimator.outputs import Folder, Outputs
from gppvae.estimator.prediction import Calibration, Prediction, calibrate, mean_and_std
from gppvae.estimator.saving import (
    constructor_arguments,
    kernel_extras,
    load_model,
    load_weights,
    restore_kernel,
    save_model,
)
from gppvae.estimator.validation import known_rows, same_length, validator
from gppvae.kernels.base import Kernel
from gppvae.kernels.parse import parse_kernel
from gppvae.likelihoods import Gaussian, Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import decode_draws, decode_mean, latents_at, predictive_bound, row_chunks
from gppvae.models.vae import Autoencoder
from gppvae.prior.posterior import WeightPosterior, prior_weights, weight_posterior
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import CONFIG, RunFolder
from gppvae.training.phases import Phase, check_phases, plan, sums_at_once

CALIBRATION_ROWS = 256
INFERENCE_CHOICES = ("global", "minibatch", "posterior", "exact")


class GPPVAE(Estimator):
    """Gaussian process prior VAE: z = f(row) + noise with f ~ GP(0, kernel), y = decoder(z) + noise.

    Args:
        kernel: over named columns, as an expression of kernels or as text.
        latent_dim: L.
        network: "auto", "conv" (the paper's MNIST network), "wide", "faces", "mlp"; or give `encoder`, `decoder`.
        width: channels of every layer of a named network; its own default when None.
        encoder, decoder: your own modules, y -> (mean, logvar) and z -> y.
        likelihood: "gaussian", "bernoulli", "negative_binomial" or a Likelihood (docs/likelihoods.md).
        pixel_var: sigma_y^2 of the Gaussian; larger trusts the prior more.
        alpha: latent noise variance to start from; by default 0.001 for global inference, where it stays fixed,
            and 0.1 otherwise.
        inference: "global", "minibatch", "posterior" or "exact" (docs/inference.md says which to choose).
        schedule: "joint", or "disjoint" to keep the networks of the VAE warm-up.
        epochs, warmup_epochs, gp_epochs: of the joint, the VAE and the GP-only phase.
        lr, prior_lr: learning rates of networks and prior.
        phases: a list of Phase instead of schedule, inference, epochs and rates.
        batch_size: B.  patience: validations without improvement before a phase stops.
        validate_every: epochs between validations.
        channels: "first" or "last" for four-dimensional arrays.  scale: factor on the samples' values.
        missing: "mask" treats NaN samples values as not observed.
        seed: makes a fit repeatable.  device: for example "cuda"; chosen when None.
    """

    def __init__(
        self,
        kernel: Kernel | str,
        latent_dim: int = 16,
        *,
        network: str = "auto",
        width: int | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        likelihood: str | dict[str, Any] | Likelihood = "gaussian",
        pixel_var: float = 0.01,
        alpha: float | None = None,
        inference: str = "global",
        schedule: str = "joint",
        epochs: int = 100,
        warmup_epochs: int = 50,
        gp_epochs: int = 100,
        lr: float = 1e-3,
        prior_lr: float = 1e-2,
        phases: list[Phase] | None = None,
        batch_size: int = 64,
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
        self.kernel = kernel
        self.alpha, self.inference, self.schedule = alpha, inference, schedule
        self.epochs, self.warmup_epochs, self.gp_epochs = epochs, warmup_epochs, gp_epochs
        self.lr, self.prior_lr, self.phases = lr, prior_lr, phases
        self.model_: GPPriorVAE | None = None
        self.weights_: WeightPosterior | None = None
        self.calibration_: Calibration | None = None

    # -- fitting

    def fit(
        self,
        samples: Any,
        table: Any,
        *,
        validation: tuple[Any, Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
        checkpoint_seconds: float = 30.0,
    ) -> GPPVAE:
        """Fit to samples and the table that says what they are.

        Args:
            samples: array-like, one sample per row of the table (see gppvae.data.arrays.Samples).
            table: DataFrame or dict of columns.
            validation: (samples, table) that are not trained on, for the log and for early stopping.
            out: run folder; the same call continues an unfinished run in it.
            progress: show progress bars.
            checkpoint_seconds: least time between checkpoints.
        """
        self._check()
        rows_table = Table(table)
        kernel = parse_kernel(self._kernel_text())
        for column in kernel.columns():
            rows_table[column]  # a missing column is told before the samples are read
        data = self._training_samples(samples)
        same_length(data, rows_table)
        kernel.bind(rows_table, torch.Generator().manual_seed(derive_seed(self.seed, 1)))
        self.shape_ = data.shape
        model = GPPriorVAE(self._build_autoencoder(data.shape), kernel, self._start_alpha(), self.latent_dim)
        model.kernel.to(self._gp_device())
        model.log_alpha.data = model.log_alpha.data.to(self._gp_device())
        rows = kernel.code(rows_table)
        model.arrange(rows, *sums_at_once(self._phases(), len(rows), self.batch_size))
        tell_cost(model, rows)
        validate = None
        if validation is not None:
            held_out = self._samples(validation[0]), Table(validation[1])
            validate = validator(model, *held_out, self.batch_size, self._torch_device())
        folder = None if out is None else RunFolder(out)
        trainer = self._train(model, self._phases(), data, rows, folder, validate, progress, checkpoint_seconds)
        self.model_, self.weights_ = model, trainer.weights
        # Errors at rows that were not trained on are the honest ones, where the model can predict such rows.
        judge = validation is not None and known_rows(kernel, Table(validation[1])) is not None
        self.calibrate(*(validation if judge and validation else (samples, table)))
        self._keep(folder)
        return self

    def calibrate(self, samples: Any, table: Any, n_samples: int = 32) -> None:
        """Measure how large errors are where draws spread little or much; `include_noise` then says so.

        Give rows that were not trained on, like those to be predicted: errors at training rows are smaller.
        At most 256 rows are used. Only the Gaussian likelihood is calibrated; others know their noise.
        """
        if not isinstance(self._autoencoder.likelihood.values, Gaussian):
            return
        data, rows_table = self._samples(samples), Table(table)
        same_length(data, rows_table)
        picked = np.arange(0, len(data), -(-max(len(data), 1) // CALIBRATION_ROWS))
        y, mask = data.read(torch.from_numpy(picked))
        self.calibration_ = calibrate(y, mask, self.predict(rows_table.take(picked), n_samples))

    def add_objects(self, samples: Any, table: Any, steps: int = 8) -> list[str]:
        """Learn ids that were not in the training set from a few samples of each; predict() then takes them.

        Args:
            samples: of the new objects.  table: their rows; ids unknown in training in a Learned column, all
                other columns as in training. An id that was added before is learned anew.
            steps: Gauss-Newton steps through the decoder after the closed-form start.

        Returns:
            The ids that were added.
        """
        data = self._samples(samples)
        self._autoencoder.likelihood.check(*data.check(), data.integers)
        return add_objects(self._fitted, data, Table(table), self._object_noise(), self.batch_size, steps)

    def _object_noise(self) -> Likelihood:
        """The likelihood of values with its noise as measured, which is what new samples differ by."""
        likelihood = self._autoencoder.likelihood.values
        if self.calibration_ is None or not isinstance(likelihood, Gaussian):
            return likelihood
        return Gaussian(self.calibration_.error_var).to(self._torch_device())

    @classmethod
    def resume(cls, out: str | os.PathLike[str], samples: Any, table: Any, **options: Any) -> GPPVAE:
        """Continue an unfinished run from its folder, with the settings it was started with.

        Args:
            out: the run folder.  samples, table: the training data.
            options: of `fit`, and encoder, decoder and likelihood when they were, or hold, modules of the user's own.
        """
        path = Path(out) / CONFIG
        if not path.exists():
            raise FileNotFoundError(f"expected a run folder at {out}, found no {CONFIG} in it; check the name")
        settings = json.loads(path.read_text())["settings"]
        own = {name: options.pop(name) for name in ("encoder", "decoder", "likelihood") if name in options}
        return cls(**(constructor_arguments(settings) | own)).fit(samples, table, out=out, **options)

    def _check(self) -> None:
        self._check_settings()
        if self.alpha is not None and not (self.alpha > 0 and np.isfinite(self.alpha)):
            raise ValueError(f"alpha must be positive, got {self.alpha}; use for example 0.1")
        if self.inference not in INFERENCE_CHOICES:
            raise ValueError(f"inference must be one of {', '.join(INFERENCE_CHOICES)}, got {self.inference!r}")
        for name in ("epochs", "warmup_epochs", "gp_epochs"):
            _whole(name, getattr(self, name), 0)
        check_phases(self._phases())

    def _phases(self) -> list[Phase]:
        if self.phases is not None:
            return self.phases
        epochs = self.epochs, self.warmup_epochs, self.gp_epochs
        return plan(self.schedule, self.inference, *epochs, self.lr, self.prior_lr)

    def _start_alpha(self) -> float:
        if self.alpha is not None:
            return self.alpha
        return 0.001 if any(phase.inference == "global" for phase in self._phases()) else 0.1

    def _gp_device(self) -> torch.device:
        device = self._torch_device()
        return torch.device("cpu") if device.type == "mps" else device  # MPS has no float64

    def _kernel_text(self) -> str:
        return self.kernel.text() if isinstance(self.kernel, Kernel) else str(self.kernel)

    def settings(self) -> dict[str, Any]:
        plain = (
            "latent_dim", "network", "width", "pixel_var", "alpha", "inference", "schedule", "epochs", "warmup_epochs",
            "gp_epochs", "lr", "prior_lr", "batch_size", "patience", "validate_every", "channels", "scale",
            "missing", "seed",
        )  # fmt: skip
        likelihood = self.likelihood.config() if isinstance(self.likelihood, Likelihood) else self.likelihood
        own = {
            "kernel": self._kernel_text(),
            "likelihood": likelihood,
            "own_networks": self.encoder is not None,
        }
        return {name: getattr(self, name) for name in plain} | own

    # -- asking

    @property
    def _fitted(self) -> tuple[GPPriorVAE, WeightPosterior]:
        if self.model_ is None or self.weights_ is None:
            raise NotFittedError("this GPPVAE is not fitted yet; call fit() or load() first")
        return self.model_, self.weights_

    @property
    def _autoencoder(self) -> Autoencoder:
        return self._fitted[0].autoencoder

    @torch.no_grad()
    def predict(
        self, table: Any, n_samples: int = 0, include_noise: bool = False, seed: int | None = None, out: Folder = None
    ) -> Prediction:
        """Samples at rows nobody measured.

        Args:
            table: rows wanted; ids known from training, numbers of any value.
            n_samples: draws of the latents to average over; 0 decodes their mean and gives no std.
            include_noise: let std be that of a new sample, its own noise and the model's errors included.
            seed: of the draws; the estimator's when None.
            out: folder to write mean.npy and std.npy into; they come back as memory maps.
        """
        model, weights = self._fitted
        _whole("n_samples", n_samples, 0)
        rows = model.kernel.code(Table(table))
        shape = (len(rows), *self.shape_)
        if n_samples == 0:
            with Outputs(out, ("mean",), shape) as arrays:
                for _, chunk in row_chunks(rows):
                    arrays.put(mean=decode_mean(model, weights, chunk))
            return Prediction(arrays["mean"], None)
        draws, generator, vectors = self._draws(weights, n_samples, seed)
        with Outputs(out, ("mean", "std"), shape) as arrays:
            for _, chunk in row_chunks(rows):
                decoded = decode_draws(model, draws, chunk, generator, vectors)
                arrays.put(**mean_and_std(decoded, include_noise, self.calibration_))
        return Prediction(arrays["mean"], arrays["std"])

    @torch.no_grad()
    def sample(
        self,
        table: Any,
        n_samples: int = 1,
        prior: bool = False,
        include_noise: bool = False,
        seed: int | None = None,
    ) -> np.ndarray:
        """Draws of whole functions at rows, (n_samples, N, *shape); with `prior`, as if no data were seen."""
        model, weights = self._fitted
        _whole("n_samples", n_samples, 1)
        rows = model.kernel.code(Table(table))
        if prior:
            rank, n_latents = weights.mean.shape
            weights = prior_weights(rank, n_latents, weights.mean.device)
        draws, generator, vectors = self._draws(weights, n_samples, seed)
        parts = []
        for _, chunk in row_chunks(rows):
            decoded = []
            for mean, var in decode_draws(model, draws, chunk, generator, vectors):
                noise = torch.randn(mean.shape, generator=generator).to(mean.device) * var.sqrt()
                decoded.append((mean + noise if include_noise else mean).cpu())
            parts.append(torch.stack(decoded))
        empty = torch.zeros(n_samples, 0, *self.shape_)
        return (torch.cat(parts, dim=1) if parts else empty).numpy()

    @torch.no_grad()
    def predict_latent(self, table: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of z at rows, (N, latent_dim) each; far from the data the prior's variance."""
        model, weights = self._fitted
        rows = model.kernel.code(Table(table))
        with Outputs(None, ("mean", "var"), (len(rows), self.latent_dim), np.float64) as arrays:
            for _, chunk in row_chunks(rows):
                z = latents_at(model, weights, chunk)
                arrays.put(mean=z.mean, var=(z.var + z.noise).expand_as(z.mean))
        return arrays["mean"], arrays["var"]

    @torch.no_grad()
    def score(self, samples: Any, table: Any) -> float:
        """Mean lower bound on log p(y | row, training data) per sample, in nats; higher is better."""
        model, weights = self._fitted
        data, rows_table = self._samples(samples), Table(table)
        data.check()
        same_length(data, rows_table)
        epoch = Epoch(data, model.kernel.code(rows_table), self.batch_size, None, self._torch_device())
        return predictive_bound(model, weights, epoch)

    def _draws(self, weights: WeightPosterior, n: int, seed: int | None) -> tuple[list[Tensor], torch.Generator, int]:
        """Draws of B, the generator of noise at rows, and the seed of the vectors of added ids."""
        of_noise, of_vectors = (derive_seed(self.seed if seed is None else seed, part) for part in (2, 3))
        generator = torch.Generator().manual_seed(of_noise)
        return [weights.sample(generator) for _ in range(n)], generator, of_vectors

    # -- keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path` (model.safetensors; nothing in it is executable)."""
        model, weights = self._fitted
        tensors = with_prefix("model", model.state_dict()) | with_prefix("weights", weights.tensors())
        meta = {
            "kind": "gppvae",
            "settings": self.settings(),
            "shape": list(self.shape_),
            "split": model.split,
            "kernel": kernel_extras(model.kernel),
            "history": self.history_,
            "fit_seconds": self.fit_seconds_,
            "skipped_steps": self.skipped_steps_,
            "calibration": None if self.calibration_ is None else self.calibration_.to_json(),
        }
        save_model(path, tensors, meta)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        likelihood: Likelihood | None = None,
        device: str | None = None,
    ) -> GPPVAE:
        """A saved model; modules of your own must be given again (those of a `likelihood` only for score())."""
        tensors, meta = load_model(path, "gppvae")
        settings = meta["settings"]
        if settings["own_networks"] and (encoder is None or decoder is None):
            raise ValueError(f"{path} was fitted with networks of your own; pass encoder= and decoder= to load()")
        self = cls(**constructor_arguments(settings, likelihood), encoder=encoder, decoder=decoder, device=device)
        self.shape_ = tuple(meta["shape"])
        state = under("model", tensors)
        kernel = restore_kernel(settings["kernel"], meta["kernel"], under("kernel", state))
        model = GPPriorVAE(
            self._build_autoencoder(self.shape_), kernel.to(self._gp_device()), self._start_alpha(), self.latent_dim
        )
        load_weights(model, state, path)
        model.split = meta["split"]
        self.model_, self.weights_ = model, weight_posterior(under("weights", tensors))
        self.calibration_ = None if meta["calibration"] is None else Calibration.from_json(meta["calibration"])
        self.history_, self.fit_seconds_ = meta["history"], meta["fit_seconds"]
        self.skipped_steps_ = meta["skipped_steps"]
        return self
