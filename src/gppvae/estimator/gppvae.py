"""The main estimator: a VAE with a Gaussian process prior over the columns of a table."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from gppvae.data.anndata_files import from_anndata
from gppvae.data.arrays import Samples, shape_out, to_input_layout
from gppvae.data.batches import derive_seed
from gppvae.data.header import checked_content
from gppvae.data.named import framed, samples_from
from gppvae.data.run_files import model_file
from gppvae.data.table import Rows, Table
from gppvae.data.words import shown
from gppvae.estimator.calibration import Calibration
from gppvae.estimator.checks import MAX_BATCH, MAX_EPOCHS, MAX_WIDTH, draws_for_std, number, readable_algebra, whole
from gppvae.estimator.choices import PATIENCE, TOLERANCE
from gppvae.estimator.cost import log_cost, warn_missing_variance
from gppvae.estimator.explain import ROWS, explain
from gppvae.estimator.explanation import Explanation
from gppvae.estimator.extending import Extending
from gppvae.estimator.impute import Imputation
from gppvae.estimator.kernel_summary import describe_fit
from gppvae.estimator.measuring import releasing
from gppvae.estimator.outputs import Folder, Outputs
from gppvae.estimator.plan import Plan, plan_fit, rows_held_out
from gppvae.estimator.plotting import Plotting
from gppvae.estimator.prediction import Prediction, kriged_scale, mean_and_std, noise_std, with_noise
from gppvae.estimator.saving import (
    check_network_sizes,
    check_same_kernel,
    kernel_extras,
    load_weights,
    probe_table,
    restore_kernels,
    restore_learned_dims,
    save_model,
)
from gppvae.estimator.settings import AUTO, Groups, arguments, check_given_again, columns_of, group_texts, latent_groups
from gppvae.estimator.validation import code_if_known, same_length, validator
from gppvae.inference import Inference, find_inference
from gppvae.inference.phase import MAX_RATE, Budget, Phase
from gppvae.kernels import Kernel
from gppvae.likelihoods import Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import (
    decode_draws,
    decode_mean,
    latents_at,
    predictive_bound,
    refined_reconstruction,
    relative_std,
    row_chunks,
)
from gppvae.models.refine import normal_at, typical
from gppvae.models.remainders import Remainders
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.callbacks import Callback
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import CONFIG, RunFolder, read_config
from gppvae.training.phases import check_phases

log = logging.getLogger("gppvae")
VALUE_NOISE = "value_noise"
ALPHAS = (1e-12, 1e6)
NOISE_DRAWS = 32  # that measure how far draws spread, where noise is added to single draws
GIVEN_AGAIN = ("kernel", "inference", "phases", "encoder", "decoder", "likelihood")  # arguments of resume()
KernelOrGroups = Kernel | str | Sequence[tuple[Kernel | str | None, int]]


@dataclass(eq=False, repr=False)
class GPPVAE(Plotting, Extending):
    """Gaussian process prior VAE: z = f(row) + noise with f ~ GP(0, kernel), y = decoder(z) + noise.

    Args:
        kernel: over named columns, as an expression of kernels or as text. Or groups of latents, each with its own
            kernel, [("RBF(age) + Learned(id, 8)", 12), (None, 4)]; None is the ordinary VAE prior, for variation that
            no column explains.
        latent_dim: number of latents; chosen from the samples when None; with groups, their sum.
        network: "auto", "image", "vector", "conv" (the paper's MNIST network), "wide", "faces", "mlp"; or give
            `encoder` and `decoder`.
        width: channels of every layer of a named network; its own default when None.
        members: number of networks in an ensemble inside the model. Each has its share of the latents and a copy of the
            kernel, and is trained on its own bound; predictions are averaged. Chosen when None.
        encoder, decoder: your own modules, y -> (mean, logvar) and z -> y. They are copied; the fitted ones are in
            `model_.autoencoder`.
        likelihood: "gaussian", "bernoulli", "negative_binomial", "poisson" or a Likelihood (docs/likelihoods.md).
        pixel_var: sigma_y^2 of the Gaussian, in the unit of the samples; larger values trust the prior more. With None,
            samples are standardised and the noise is measured at held-out rows (docs/likelihoods.md).
        alpha: initial latent noise variance; the default of the inference when None.
        inference: "auto" chooses from the data; or "leave_out", "global", "minibatch", "posterior", "exact"
            (docs/inference.md), or a class.
        schedule: "joint", or "disjoint" to keep the networks of the VAE warm-up, if there is one.
        epochs: of the main phase; chosen when None, like lr, prior_lr, batch_size and patience.
        warmup_epochs, gp_epochs: of the VAE and the GP-only phase, if the inference has them.
        lr, prior_lr: learning rates of networks and prior.
        phases: a list of Phase instead of inference, schedule, epochs and rates.
        batch_size: samples per step; chosen when None.  patience: validations without improvement before a phase stops.
        validate_every: epochs between validations.
        hold_out: share of the rows held out at first to measure errors, if no validation data are given; None holds out
            some rows when the inference is "auto", and none otherwise.
        channels: "first" or "last" for four-dimensional arrays.  scale: factor on the values of the samples.
        missing: "mask" treats NaN as not observed.
        seed: makes a fit reproducible.  device: for example "cuda"; chosen when None.

    Attributes:
        sample_names_: names of the values of a sample, if the samples had named columns.
        kernel_: the fitted kernel; with groups of latents a list, one per group; in an ensemble that of the first
            member.
        prior_: all kernels, with the latent noise.
        resolved_: the settings as trained, with defaults filled in, and the phases.
        model_: networks and prior.  posterior_: q(B).  history_: metrics per epoch.
        comparison_: errors at held-out rows, of the model and of the simple answers; None if no rows were held out.

    Example:
        >>> import numpy as np
        >>> from gppvae import GPPVAE
        >>> time = np.tile(np.linspace(0.0, 6.0, 12), 3)
        >>> table = {"who": np.repeat(["ann", "bob", "eve"], 12), "time": time}
        >>> samples = np.sin(time)[:, None] * np.linspace(-1.0, 1.0, 5)
        >>> model = GPPVAE("RBF(time) + Learned(who, 2) * RBF(time)", latent_dim=2, epochs=3)
        >>> model = model.fit(samples, table, progress=False)
        >>> new = model.predict({"who": ["ann", "eve"], "time": [2.5, 7.0]}, n_samples=16)
        >>> new.mean.shape, new.std.shape
        ((2, 5), (2, 5))
        >>> model.encode(samples).shape
        (36, 2)
    """

    kind: ClassVar[str] = "gppvae"

    kernel: KernelOrGroups
    latent_dim: int | None = None
    _: KW_ONLY
    alpha: float | None = None
    inference: str | type[Inference] = AUTO
    schedule: str = "joint"
    epochs: int | None = None
    warmup_epochs: int = 50
    gp_epochs: int = 100
    lr: float | None = None
    prior_lr: float | None = None
    phases: list[Phase] | None = None
    hold_out: float | None = None

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
        callbacks: Sequence[Callback] = (),
    ) -> GPPVAE:
        """Fit to samples and the table that describes them.

        Args:
            samples: array-like, one sample per row of the table (see gppvae.data.arrays.Samples): array, DataFrame,
                scipy sparse matrix, image files. Or names and patterns of the table's columns, ["gene_*", "depth"].
            table: DataFrame or dict of columns.
            validation: (samples, table) for the log and for early stopping.
            out: run folder; the same call continues an unfinished run in it.
            progress: show progress bars.
            checkpoint_seconds: minimum time between checkpoints.
            callbacks: called at the start, after every epoch and at the end; see gppvae.Callback.
        """
        folder = None if out is None else RunFolder(out)
        with self._restored_on_error():
            options = {"progress": progress, "checkpoint_seconds": checkpoint_seconds, "callbacks": callbacks}
            self._fit(samples, table, validation, folder, **options)
        self._save_run(folder)
        return self

    def _fit(self, samples: Any, table: Any, validation: Any, folder: RunFolder | None, **options: Any) -> None:
        """`fit` but for the model file; `options` are arguments of `_train`."""
        groups = self._checked()
        everything, rows_table, evaluation = self._read(samples, table, validation, groups)
        held = rows_held_out(self, groups, rows_table, everything, evaluation is not None)
        plan = plan_fit(self, groups, everything, rows_table, held)
        model = self._build(plan, everything.shape)
        rows = model.prior.code(rows_table)
        model.prior.plan(rows, plan.batch_size)
        log_cost(model.prior, rows)
        training, reduced = (everything, rows_table), None
        if held.size:
            index = np.setdiff1d(np.arange(len(everything)), held)
            training = everything.part(index), rows_table.take(index)
            evaluation = everything.part(held), rows_table.take(held)
            reduced = training[0], rows[torch.from_numpy(index).to(rows.device)]
        validate = None
        if evaluation is not None:
            validate = validator(model, *evaluation, plan.batch_size, self._torch_device())
            if code_if_known(model.prior, evaluation[1]) is None:  # unknown ids: the model cannot predict these rows
                evaluation = None

        def measure(weights: LatentPosterior) -> dict[str, Any]:
            # On a copy, since training may continue.
            self.model_, self.posterior_ = copy.deepcopy(model), weights
            return self._evaluate(evaluation or training, training, held_out=evaluation is not None)

        chosen = model, plan.phases, everything, rows, folder, validate
        trainer = self._train(*chosen, **options, reduced=reduced, measure=measure)
        warn_missing_variance(model.prior)
        assert trainer.weights is not None, "check_phases requires a phase that computes q(B)"
        with releasing(folder):
            measured = trainer.measured if trainer.measured is not None else measure(trainer.weights)
            self.model_, self.posterior_ = model, trainer.weights
            self._apply_measured(measured, folder)
            self.posterior_ = self._laplace(everything, rows)
            self.remainders_ = self._residual_covariances(everything, rows)

    def _read(
        self, samples: Any, table: Any, validation: tuple[Any, Any] | None, groups: Groups
    ) -> tuple[Samples, Table, tuple[Samples, Table] | None]:
        """Training samples and table, and those for validation, if any."""
        rows_table, read = Table(table), columns_of(groups)
        size_column = self._make_likelihood().size_column
        for column in [*read, *([] if size_column is None else [size_column])]:
            rows_table[column]  # report a missing column before the samples are read
        samples = samples_from(samples, table, read)
        self.frames_ = isinstance(samples, pd.DataFrame)
        if validation is not None:
            validation = samples_from(validation[0], validation[1], read), validation[1]
        everything = self._training_samples(samples)
        same_length(everything, rows_table)
        self.shape_ = everything.shape
        if validation is None:
            return everything, rows_table, None
        return everything, rows_table, (self._samples(validation[0]), Table(validation[1]))

    def _build(self, plan: Plan, shape: tuple[int, ...]) -> GPPriorVAE:
        """The model for a plan and samples of this shape."""
        self._chosen_batch = plan.batch_size
        self._chosen_width, self._chosen_members = plan.networks.width, plan.networks.members
        prior = plan.prior.to(self._gp_device())
        model = GPPriorVAE(self._build_autoencoder(shape, prior.written_sizes), prior)
        plan.start_networks(model.autoencoder)
        return model

    @classmethod
    def fit_anndata(
        cls,
        adata: Any,
        kernel: KernelOrGroups,
        *,
        layer: str | None = None,
        spatial: str | None = None,
        key_added: str | None = "gppvae",
        **options: Any,
    ) -> GPPVAE:
        """Fit a model to an AnnData object: observations are rows of the table, genes the values of a sample.

        Latents are stored as `adata.obsm["X_gppvae"]`, predictions as `adata.layers["gppvae"]`. Needs the extra
        `anndata`.

        Args:
            adata: of observations x genes; a sparse matrix becomes dense one batch at a time.
            kernel: over columns of `adata.obs`.
            layer: to fit to; X when None.
            spatial: key of coordinates in obsm; they become the columns x, y (and z) for the kernel.
            key_added: name of the stored results; None stores nothing. Predictions are a dense matrix.
            options: settings of GPPVAE, and arguments of fit().
        """
        known = {item.name for item in fields(cls)}
        settings = {name: options.pop(name) for name in list(options) if name in known}
        samples, table = from_anndata(adata, layer, spatial)
        model = cls(kernel, **settings).fit(samples, table, **options)
        if key_added is not None:
            adata.obsm[f"X_{key_added}"] = model.encode(samples)
            adata.layers[key_added] = model.predict(table).mean
        return model

    @property
    def _tolerance(self) -> float:
        return TOLERANCE if self._chooses and self.patience is None else 0.0

    @property
    def _chooses(self) -> bool:
        """Whether inference and length of training are chosen from the data."""
        return self.phases is None and isinstance(self.inference, str) and self.inference == AUTO

    @classmethod
    def resume(cls, out: str | os.PathLike[str], samples: Any, table: Any, **options: Any) -> GPPVAE:
        """Continue an unfinished run from its folder, with its settings.

        Args:
            out: the run folder.  samples, table: the training data.
            options: arguments of `fit`; and your kernel, inference, phases, encoder, decoder or likelihood, if custom.
        """
        settings = read_config(out)["settings"]
        own = {name: options.pop(name) for name in GIVEN_AGAIN if name in options}
        check_given_again(settings["own"], dict.fromkeys(GIVEN_AGAIN) | own, out, "resume()")
        with checked_content(Path(out) / CONFIG):
            self = cls(**(arguments(settings["given"]) | own))
        return self.fit(samples, table, out=out, **options)

    def _checked(self) -> Groups:
        """Check all settings; returns the groups of latents."""
        self._check_settings()
        groups = latent_groups(self.kernel, self.latent_dim)
        if not self._chooses:
            check_phases(self._phases(unexplained=any(kernel is None for kernel, _ in groups)))
        return groups

    def _check_settings(self) -> None:
        super()._check_settings()
        Budget(self.schedule)  # raises for an unknown schedule, also with "auto", which does not use it
        if self.alpha is not None:
            number("alpha", self.alpha, *ALPHAS, "0.1")
        for name in ("epochs", "warmup_epochs", "gp_epochs"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 0, MAX_EPOCHS)
        for name in ("lr", "prior_lr"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), 0.0, MAX_RATE, "0.001")
        if self.latent_dim is not None:
            whole("latent_dim", self.latent_dim, 1, MAX_WIDTH)
        if self.hold_out is not None:
            number("hold_out", self.hold_out, 0.0, 0.9, "0.05")

    def _phases(self, unexplained: bool) -> list[Phase]:
        """The given phases, or those of the inference, without phases of zero epochs."""
        if self.phases is not None:
            if not isinstance(self.phases, (list, tuple)) or not all(isinstance(p, Phase) for p in self.phases):
                raise TypeError(f"phases must be a list of Phase, got {shown(self.phases)}; see gppvae.Phase")
            return list(self.phases)
        given: dict[str, Any] = {"epochs": self.epochs, "lr": self.lr, "prior_lr": self.prior_lr}
        budget = Budget(
            self.schedule, warmup_epochs=self.warmup_epochs, gp_epochs=self.gp_epochs, unexplained=unexplained,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        return [phase for phase in find_inference(self.inference).phases(budget) if phase.epochs > 0]

    def _resolve(self, model: GPPriorVAE, phases: list[Phase], samples: Samples) -> dict[str, Any]:
        prior = model.prior
        groups = list(zip(prior.written_kernels, prior.written_sizes, strict=True))
        alphas = [float(group.alpha.detach()) for group in prior.groups if group.kernel is not None]
        chosen = {"kernel": group_texts(groups), "alpha": alphas[0]}
        if self._chooses and self.patience is None:
            chosen["patience"] = PATIENCE
        return super()._resolve(model, phases, samples) | chosen

    # -- using the fitted model

    @property
    def kernel_(self) -> Kernel | list[Kernel | None]:
        """The fitted kernel; with groups of latents a list, None for groups without one.

        In an ensemble this is the kernel of the first member; `prior_.kernels` has those of all members.
        """
        found = self.prior_.written_kernels
        return found[0] if len(found) == 1 and found[0] is not None else found

    @torch.no_grad()
    @readable_algebra()
    def predict(
        self, table: Any, n_samples: int = 0, include_noise: bool = False, seed: int | None = None, out: Folder = None
    ) -> Prediction:
        """Predict samples at rows, measured or not, in the shape and order of axes of the training samples.

        After a fit to a DataFrame, a DataFrame of rows gives DataFrames with the columns of the samples and the index
        of the rows. A dict of rows gives arrays.

        Args:
            table: rows to predict; ids known from training, numbers of any value.
            n_samples: draws of the latents to average over, at least 2; 0 decodes their mean and gives no std.
            include_noise: whether std and `interval` are those of a new sample, including noise and model errors; needs
                draws.
            seed: of the draws; that of the estimator when None.
            out: folder for mean.npy and std.npy, which are returned as memory maps.
        """
        model, weights = self._fitted
        draws_for_std(n_samples, include_noise)
        rows = model.prior.code(Table(table))
        shape = shape_out(len(rows), self.shape_, self.layout_)
        if n_samples == 0:
            with Outputs(out, ("mean",), shape) as arrays:
                for chunk in row_chunks(rows):
                    mean = decode_mean(model, weights, chunk)
                    kriged = self.remainders_.at(model.prior, chunk, self.shape_)
                    mean = mean if kriged is None else mean + kriged[0].to(mean)
                    arrays.put(mean=to_input_layout(mean, self.layout_))
            return self._prediction(table, arrays["mean"], None)
        draws, generator, vectors = self._draws(weights, n_samples, seed)
        with Outputs(out, ("mean", "std"), shape) as arrays:
            for chunk in row_chunks(rows):
                decoded = decode_draws(model, draws, chunk, generator, vectors)
                kriged = self.remainders_.at(model.prior, chunk, self.shape_)
                uncertainty = relative_std(model, weights, chunk) if include_noise else None
                found = mean_and_std(decoded, include_noise, self.calibration_, self._unit(), uncertainty, kriged)
                arrays.put(**{name: to_input_layout(part, self.layout_) for name, part in found.items()})
        drawn = self._prediction(table, arrays["mean"], arrays["std"])
        measured = self.calibration_ if include_noise else None
        return drawn if measured is None else replace(drawn, widths=measured.widths)

    def _prediction(self, table: Any, mean: np.ndarray, std: np.ndarray | None) -> Prediction:
        """A prediction, as DataFrames if the samples and the rows were DataFrames."""
        names, values = self._labels if self.frames_ else None, self._autoencoder.likelihood.values
        framed_std = None if std is None else framed(std, names, table)
        found = Prediction(framed(mean, names, table), framed_std)
        return replace(found, least_value=values.least_value, most_value=values.most_value)

    @torch.no_grad()
    @readable_algebra()
    def sample(
        self,
        table: Any,
        n_samples: int = 1,
        prior: bool = False,
        include_noise: bool = False,
        seed: int | None = None,
    ) -> np.ndarray:
        """Draws of whole functions at rows, from the posterior or from the prior.

        At rows of added objects they scatter as `predict` says, too: by what is unknown of the errors carried over.

        Args:
            table: rows; ids known from training, numbers of any value.  n_samples: number of draws.
            prior: draw from the prior, as before any data.
            include_noise: whether draws are new samples, with noise; from the posterior, with errors of the model as
                well, so that they scatter as `predict(..., include_noise=True)` says.
            seed: of the draws; that of the estimator when None.

        Returns:
            (n_samples, N, ...), samples in the shape and order of axes of the training samples.
        """
        model, weights = self._fitted
        whole("n_samples", n_samples, 1)
        rows = model.prior.code(Table(table))
        if prior:
            weights = model.prior.before_data()
        draws, generator, vectors = self._draws(weights, n_samples, seed)
        measured = self.calibration_ if include_noise and not prior else None
        parts = []
        for chunk in row_chunks(rows):
            decoded = []
            kriged = None if prior else self.remainders_.at(model.prior, chunk, self.shape_)
            errors = None if measured is None else self._noise_std(chunk, measured, kriged, seed)
            left = self._kriged_draws(chunk, kriged, n_samples if measured is None else 0, seed)
            for drawn, var in decode_draws(model, draws, chunk, generator, vectors):
                mean = drawn if kriged is None else drawn + (kriged[0] + next(left, 0.0)).to(drawn)
                if measured is not None and errors is not None:
                    mean = with_noise(mean, errors, measured.widths, generator)
                elif include_noise:
                    mean = model.autoencoder.likelihood.values.noisy(mean, var, generator)
                decoded.append(mean.cpu())
            parts.append(torch.stack(decoded))  # (n_samples, rows, *shape)
        empty = torch.zeros(n_samples, 0, *self.shape_)
        return to_input_layout((torch.cat(parts, dim=1) if parts else empty).numpy(), self.layout_)

    def _noise_std(
        self, rows: Rows, measured: Calibration, kriged: tuple[Tensor, Tensor] | None, seed: int | None
    ) -> np.ndarray:
        """Standard deviation of errors and noise at rows, (N, *shape), from draws of their own."""
        uncertainty = relative_std(*self._fitted, rows)
        return noise_std(self._apart(rows, seed), measured, self._unit(), uncertainty, kriged)

    def _kriged_draws(
        self, rows: Rows, kriged: tuple[Tensor, Tensor] | None, n: int, seed: int | None
    ) -> Iterator[Tensor]:
        """n draws of what kriging leaves of the errors at rows, (N, *shape) each; none where it leaves nothing."""
        if n == 0 or kriged is None or not kriged[1].any():
            return
        scale = kriged_scale(self._apart(rows, seed), self._unit()).cpu()
        for draw in range(n):
            own = derive_seed(self._seed_of(seed), 6, draw)
            yield scale * self.remainders_.draw(self.prior_, rows, self.shape_, own)

    def _apart(self, rows: Rows, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Means and variances at rows of NOISE_DRAWS draws apart from those that are given out."""
        model, weights = self._fitted
        draws, generator, vectors = self._draws(weights, NOISE_DRAWS, derive_seed(self._seed_of(seed), 5))
        return decode_draws(model, draws, rows, generator, vectors)

    @readable_algebra()
    def impute(
        self,
        samples: Any,
        table: Any,
        n_samples: int = 0,
        include_noise: bool = True,
        seed: int | None = None,
        out: Folder = None,
    ) -> Imputation:
        """Impute missing values (NaN) of samples, given their rows and observed values; a DataFrame for a DataFrame.

        The GP's prediction at a row is the prior of its latents, which is conditioned on the observed values. At
        training rows that prediction was itself conditioned on the sample, so its std is slightly too small there. At
        rows of added objects it has the errors carried over, as in `predict`, with their variance.

        Args:
            samples: with NaN for missing values, whatever `missing` is.  table: their rows, as in `predict`.
            n_samples: number of draws of the missing values.
            include_noise: whether std and draws include the noise of the values.
            seed: of the draws; that of the estimator when None.
            out: folder for mean.npy, std.npy and draws.npy, (N, n_samples, ...), returned as memory maps.
        """
        model, _ = self._fitted
        whole("n_samples", n_samples, 0)
        data, rows_table = self._samples(samples, missing="mask"), Table(table)
        same_length(data, rows_table)
        model.autoencoder.likelihood.check(*data.check(), data.integers)
        generator = torch.Generator().manual_seed(derive_seed(self._seed_of(seed), 4))
        rows = model.prior.code(rows_table)
        found = self._imputer(self.trust_).run(data, rows, n_samples, include_noise, generator, out)
        parts = {name: framed(getattr(found, name), self._labels, samples) for name in ("mean", "std")}
        return replace(found, **parts)

    @torch.no_grad()
    @readable_algebra()
    def predict_latent(self, table: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of z at rows, (N, latent_dim) each; far from the data those of the prior."""
        model, weights = self._fitted
        rows = model.prior.code(Table(table))
        with Outputs(None, ("mean", "var"), (len(rows), model.prior.n_latents), np.float64) as arrays:
            for chunk in row_chunks(rows):
                z = latents_at(model, weights, chunk)
                arrays.put(mean=z.mean, var=z.var + z.noise)
        return arrays["mean"], arrays["var"]

    @torch.no_grad()
    @readable_algebra()
    def reconstruct(self, samples: Any, out: Folder = None, table: Any = None) -> np.ndarray:
        """Decode the latents that fit each sample best; same shape as the input, and a DataFrame for a DataFrame.

        Latents start at the encoder's mean, or at the prediction if a table is given and that fits better. A few
        Gauss-Newton steps through the decoder refine them, and never increase the loss of a sample.

        Args:
            out: folder for mean.npy, which is returned as a memory map.
            table: rows of the samples; without it, their prior is that over all training rows.
        """
        model, weights = self._fitted
        data = self._samples(samples)
        data.check()
        rows = Rows({}, len(data))
        if table is not None:
            same_length(data, Table(table))
            rows = model.prior.code(Table(table))
        epoch = self._epoch(data, rows)
        with Outputs(out, ("mean",), shape_out(epoch.n_rows, self.shape_, data.layout_in)) as arrays:
            for batch in epoch:
                known = table is not None
                before = normal_at(model, weights, batch.rows) if known else typical(model.prior, len(batch))
                arrays.put(mean=to_input_layout(refined_reconstruction(model, batch, before), data.layout_in))
        return framed(arrays["mean"], self._labels, samples)

    @torch.no_grad()
    @readable_algebra()
    def score(self, samples: Any, table: Any) -> float:
        """Mean lower bound on log p(y | row, training data) per sample, in nats; higher is better.

        At rows of added objects the mean has the errors carried over, as in `predict`. The noise stays that of
        training, without the variance of these errors, for which the likelihood has no form.
        """
        model, weights = self._fitted
        data, rows_table = self._samples(samples), Table(table)
        data.check()
        same_length(data, rows_table)
        return predictive_bound(model, weights, self._epoch(data, model.prior.code(rows_table)), self.remainders_)

    @torch.no_grad()
    @readable_algebra()
    def explain(self, table: Any, n_rows: int = ROWS, seed: int | None = None) -> Explanation:
        """Shares of variance and curves of the terms of the kernel, over the rows of a table.

        Per term: its share of the variance of the latents and of the predicted samples (also per channel or pixel), and
        its curve along the columns it reads, with a band. Shares add up to one; the covariance between terms is given
        too. They contain no latent noise and no noise of the samples (docs/howto/explain.md).

        Args:
            table: rows over which variance is computed, usually the training table; ids known from training.
            n_rows: maximum number of rows, drawn at random from the table.
            seed: of that draw; that of the estimator when None.
        """
        whole("n_rows", n_rows, 2)
        fitted, names = self._fitted, self.sample_names_ or ()
        return explain(fitted, Table(table), self.layout_, n_rows, self._seed_of(seed), names)

    def _draws(
        self, weights: LatentPosterior, n: int, seed: int | None
    ) -> tuple[list[list[Tensor]], torch.Generator, int]:
        """Draws of B, the generator of noise at rows, and the seed of the vectors of added ids."""
        noise_seed, vector_seed = (derive_seed(self._seed_of(seed), part) for part in (2, 3))
        generator = torch.Generator().manual_seed(noise_seed)
        return [weights.sample(generator) for _ in range(n)], generator, vector_seed

    # -- saving and loading

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path` (model.safetensors; nothing in it is executable)."""
        model, posterior = self._fitted
        tensors = with_prefix("model", model.state_dict()) | with_prefix("weights", posterior.tensors())
        if self.value_noise_ is not None:
            tensors |= {VALUE_NOISE: self.value_noise_}
        tensors |= with_prefix("remainders", self.remainders_.tensors())
        meta = self._meta() | {
            "frames": self.frames_,
            "described": describe_fit(self),
            "kernel": kernel_extras(model.prior),
            "remainders": self.remainders_.to_json(),
            "calibration": None if self.calibration_ is None else self.calibration_.to_json(),
            "comparison": None if self.comparison_ is None else self.comparison_.to_json(),
            "trust": self.trust_.to_json(),
        }
        save_model(path, tensors, meta)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        kernel: KernelOrGroups | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        likelihood: Likelihood | None = None,
        device: str | None = None,
    ) -> GPPVAE:
        """A saved model.

        Args:
            path: of its folder.
            kernel, encoder, decoder: as given to the estimator, if they are custom classes.
            likelihood: likewise; a likelihood of the package with a network inside is needed only for score().
            device: as in GPPVAE.
        """
        again = {"kernel": kernel, "encoder": encoder, "decoder": decoder, "likelihood": likelihood}
        self, tensors, meta = cls._opened(path, again, device)
        file, state, trained = model_file(path), under("model", tensors), self.resolved_
        with checked_content(file):
            groups = latent_groups(trained["kernel"] if kernel is None else kernel, trained["latent_dim"])
            whole("batch_size", trained["batch_size"], 1, MAX_BATCH)
            self._chosen_batch, self.frames_ = trained["batch_size"], meta["frames"]
            prior = LatentPrior(groups, copies=self._network_options["members"])
            restore_learned_dims(prior, under("prior", state))
            check_same_kernel(groups, trained["kernel"], path)
            restore_kernels(prior, meta["kernel"], under("prior", state))
            if encoder is None:
                check_network_sizes(self, prior.written_sizes, state)
        autoencoder = self._build_autoencoder(self.shape_, prior.written_sizes)  # custom networks may not match
        with checked_content(file):
            model = GPPriorVAE(autoencoder, prior.to(self._gp_device()))
            load_weights(model, state, path)
            weights = {name: value.to(prior.device) for name, value in under("weights", tensors).items()}
            self.model_, self.posterior_ = model, LatentPosterior.from_tensors(weights)
            self.posterior_.check([(group.rank, group.n_latents, group.places) for group in prior.groups])
            kept = under("remainders", tensors)
            self.remainders_ = Remainders.from_saved(meta["remainders"], kept, self.shape_, prior, self.posterior_)
            self._restore_measured(meta, tensors.get(VALUE_NOISE))
            self._check_predictions(None if "kernel" in meta["own"] else probe_table(prior))
        return self

    def _check_predictions(self, table: Table | None) -> None:
        """Raise ValueError unless predictions at a few rows are finite."""
        model, weights = self._fitted
        probe = torch.zeros(1, *self.shape_, device=self._torch_device())
        autoencoder = model.autoencoder
        with torch.no_grad():
            out = autoencoder.decode(autoencoder.encode(probe)[0])
            outputs = [autoencoder.reconstruct(probe), autoencoder.likelihood.variance(out)]
        if table is not None and len(table):
            outputs += self._probe(model, model.prior.code(table), probe, None, weights) or []
            drawn = self.predict(table, n_samples=2, include_noise=True)
            outputs += [torch.from_numpy(part) for part in (drawn.mean, drawn.std) if part is not None]
        if not all(bool(output.isfinite().all()) for output in outputs):
            raise ValueError("its predictions are not finite")
