"""Base class of the estimators: settings, networks, the fit, encoding, saving."""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import hashlib
import json
import logging
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from gppvae.data.arrays import Samples, shape_out, to_input_layout
from gppvae.data.batches import Epoch
from gppvae.data.header import checked_content
from gppvae.data.named import aligned, framed
from gppvae.data.run_files import model_file
from gppvae.data.settings import OWN
from gppvae.data.sizes import sizes_in
from gppvae.data.table import Rows
from gppvae.data.words import shown
from gppvae.data.world import ALONE, World
from gppvae.estimator.checks import MAX_BATCH, MAX_MEMBERS, MAX_SEED, MAX_WIDTH, choice, find_device, number, whole
from gppvae.estimator.display import estimator_html, fitted_text
from gppvae.estimator.export import export_decoder, write_onnx
from gppvae.estimator.outputs import Folder, Outputs
from gppvae.estimator.saving import check_same_likelihood, check_settings_saved, load_model
from gppvae.estimator.settings import WRITES_PHASES, arguments, check_given_again, custom_classes, settings_of
from gppvae.inference.phase import Phase
from gppvae.likelihoods import PIXEL_VARS, Gaussian, Likelihood, ScaledGaussian, make_likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import NETWORKS, build_networks, check_networks, choose_network
from gppvae.nets.masked import MaskedEncoder
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.callbacks import Callback, CallbackList, check_callbacks
from gppvae.training.distributed import check_same, current_world, first_process
from gppvae.training.folder import RunFolder
from gppvae.training.loop import Measure, Settings, Trainer, TrainingError, Validate

Self = TypeVar("Self", bound="Estimator")
BATCH = 64
VALIDATIONS = 50  # in the longest phase, by default
FEW_ROWS = 8  # at which predictions must be finite before a model is saved
SCALES = (1e-30, 1e30)

log = logging.getLogger("gppvae")


class NotFittedError(ValueError, AttributeError):
    """The estimator was used before fit()."""


@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(abc.ABC):
    """Base of GPPVAE and VAE. The constructor only stores its arguments; fitted values end in an underscore.

    Fields are the settings: `get_params`, config.json, the model file, `gppvae info` and the report read them here.
    """

    kind: ClassVar[str]  # in model files

    network: str = "auto"
    width: int | None = None
    members: int | None = None
    encoder: nn.Module | None = None
    decoder: nn.Module | None = None
    likelihood: str | dict[str, Any] | Likelihood = "gaussian"
    pixel_var: float | None = None
    batch_size: int | None = None
    patience: int | None = None
    validate_every: int | None = None
    channels: str = "first"
    scale: float | None = None
    missing: str = "error"
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        self._sees_mask = False  # whether a named encoder gets the mask: if any training value was missing
        # Fitted attributes are declared here and set by fit() or load().
        self._chosen_batch = BATCH
        self._chosen_width: int | None = None  # of a named network; None for its default
        self._chosen_members = 1
        self.shape_: tuple[int, ...]
        self.layout_: str
        self.sample_names_: list[str] | None
        self.integer_names_: bool  # whether these were whole numbers, as in a DataFrame made from an array
        self.model_: GPPriorVAE
        self.resolved_: dict[str, Any]
        self.history_: list[dict[str, Any]]
        self.skipped_steps_: int
        self.fit_seconds_: float

    # -- settings, following scikit-learn

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def set_params(self: Self, **params: Any) -> Self:
        """Change constructor arguments."""
        known = [item.name for item in fields(self)]
        unknown = [name for name in params if name not in known]
        if unknown:
            raise ValueError(f"{type(self).__name__} has no setting {unknown[0]!r}; it has {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tags of the estimator, for scikit-learn."""
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(two_d_array=True, three_d_array=True, sparse=True, allow_nan=self.missing == "mask")
        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def n_features_in_(self) -> int:
        """Number of values of a sample, images flattened."""
        if not hasattr(self, "shape_"):
            raise AttributeError("n_features_in_ is known once fit() was called")
        return math.prod(self.shape_)

    def __repr__(self) -> str:
        ordered = sorted(fields(self), key=lambda item: bool(item.kw_only))  # the kernel comes first
        changed = [item for item in ordered if getattr(self, item.name) is not item.default]
        words = [f"{item.name}={getattr(self, item.name)!r}" for item in changed]
        fitted = fitted_text(self)
        return f"{type(self).__name__}({', '.join(words)})" + (f"\n  {fitted}" if fitted else "")

    def _repr_html_(self) -> str:
        return estimator_html(self)

    # -- to be defined by subclasses

    @property
    def _tolerance(self) -> float:
        """See training.loop.Settings."""
        return 0.0

    @abc.abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into the folder `path`."""

    # -- checks

    @property
    def _fitted_model(self) -> GPPriorVAE:
        """The fitted model, or NotFittedError."""
        if not hasattr(self, "model_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit() or load() first")
        return self.model_

    def _check_settings(self) -> None:
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, np.generic):  # plain numbers, for torch and JSON
                setattr(self, name, value.item())
        whole("seed", self.seed, 0, MAX_SEED)
        optional = (
            ("batch_size", 1, MAX_BATCH),
            ("width", 1, MAX_WIDTH),
            ("members", 1, MAX_MEMBERS),
            ("patience", 0, None),
            ("validate_every", 1, None),
        )
        for name, least, most in optional:
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least, most)
        choice("network", self.network, NETWORKS)
        for name in ("encoder", "decoder"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, nn.Module):
                raise TypeError(f"{name} must be a torch.nn.Module, got {shown(given)}")
        if (self.encoder is None) != (self.decoder is None):
            raise ValueError("expected encoder and decoder together, got only one of them; give both or neither")
        if self.encoder is not None and (self.members or 1) > 1:
            raise ValueError(f"members={self.members} needs a network by name, got your own; leave one of them out")
        if self.pixel_var is not None:
            number("pixel_var", self.pixel_var, *PIXEL_VARS, "0.01")
        if self.scale is not None:
            number("scale", self.scale, *SCALES, "0.00392 for values up to 255")
        choice("channels", self.channels, ("first", "last"))
        choice("missing", self.missing, ("error", "mask"))
        find_device(self.device)
        self._make_likelihood()

    def _make_likelihood(self) -> Likelihood:
        """A likelihood for a new fit; a given one is copied, so that fit() does not change it."""
        if isinstance(self.likelihood, str) and self.likelihood == Gaussian.name:
            return ScaledGaussian() if self.pixel_var is None else Gaussian(self.pixel_var)
        return copy.deepcopy(make_likelihood(self.likelihood))

    def _samples(self, data: Any, missing: str | None = None) -> Samples:
        data = aligned(data, getattr(self, "sample_names_", None))
        samples = Samples(data, self.channels, self.scale, missing or self.missing)
        shape = getattr(self, "shape_", samples.shape)
        if samples.shape != shape:
            raise ValueError(
                f"expected samples of shape {shape} as in training, got {samples.shape}; "
                "resize them or select the same values"
            )
        return samples

    def _training_samples(self, data: Any) -> Samples:
        samples = Samples(data, self.channels, self.scale, self.missing)
        lowest, highest = samples.check(current_world())
        self._make_likelihood().check(lowest, highest, samples.integers)
        samples.keep_in_memory()
        self.layout_, self.sample_names_ = samples.layout_in, samples.names
        self.integer_names_ = isinstance(data, pd.DataFrame) and pd.api.types.is_integer_dtype(data.columns.dtype)
        self._sees_mask = samples.missing_values.total > 0
        log_missing(samples)
        warn_coarse(samples)
        return samples

    # -- building and running

    @contextlib.contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """If the block fails, also by Ctrl-C, restore all attributes: an earlier fit stays as it was."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    @property
    def _rows_per_batch(self) -> int:
        """The batch size, given or chosen by the fit."""
        return self.batch_size or self._chosen_batch

    def _torch_device(self) -> torch.device:
        return find_device(self.device)

    def _gp_device(self) -> torch.device:
        device = self._torch_device()
        return torch.device("cpu") if device.type == "mps" else device  # MPS has no float64

    @property
    def _network_options(self) -> dict[str, Any]:
        """Width and members of a named network, given or chosen by the fit."""
        return {"width": self.width or self._chosen_width, "members": self.members or self._chosen_members}

    def _build_autoencoder(self, shape: tuple[int, ...], sizes: Sequence[int]) -> Autoencoder:
        """Networks initialised from the seed, or copies of the given ones, and the likelihood, on the device.

        Args:
            shape: of a sample.  sizes: numbers of latents of the groups.
        """
        n_latents = sum(sizes)
        likelihood = self._make_likelihood()
        likelihood.adapt(shape)
        if self.encoder is not None and self.decoder is not None:
            encoder, decoder = copy.deepcopy(self.encoder), copy.deepcopy(self.decoder)
        else:
            generator = torch.Generator().manual_seed(self.seed)
            numbers = likelihood.numbers_per_value
            encoder, decoder = build_networks(
                self.network, shape, n_latents, numbers_per_value=numbers, generator=generator,
                masked=self._sees_mask, sizes=sizes, **self._network_options,
            )  # fmt: skip
        encoder, decoder = encoder.eval(), decoder.eval()  # the loop switches to training mode
        check_networks(encoder, decoder, shape, n_latents, likelihood.numbers_per_value)
        return Autoencoder(encoder, decoder, likelihood).to(self._torch_device())

    def _train(
        self,
        model: GPPriorVAE,
        phases: list[Phase],
        samples: Samples,
        rows: Rows,
        folder: RunFolder | None,
        validate: Validate | None,
        progress: bool,
        checkpoint_seconds: float,
        callbacks: Sequence[Callback] = (),
        reduced: tuple[Samples, Rows] | None = None,
        measure: Measure | None = None,
    ) -> Trainer:
        """Train a model in these phases, or resume the unfinished run in the folder.

        Args:
            samples, rows: all training data.  validate, measure: see Trainer.
            folder, progress, checkpoint_seconds, callbacks: as in `fit`.
            reduced: samples and rows without the held-out ones, if any are held out.
        """
        number("checkpoint_seconds", checkpoint_seconds, 0.0, math.inf, "30")
        world, likelihood = current_world(), model.autoencoder.likelihood
        likelihood.ready(samples.shape)
        likelihood.measure(*(x.to(self._torch_device()) for x in samples.moments(world)))
        _measure_sizes(likelihood, samples, rows, world)
        self.resolved_ = self._resolve(model, phases, samples)
        settings = Settings(
            self.seed, self.resolved_["patience"], self._tolerance, self.resolved_["validate_every"],
            checkpoint_seconds, progress,
        )  # fmt: skip
        callback = CallbackList(check_callbacks(callbacks), active=world.first)
        facts = self._data_facts(samples, rows)
        config = {"given": settings_of(self), "trained": self.resolved_, "own": custom_classes(self), "data": facts}
        check_same(world, _digests(config, samples))
        resume = False
        if folder is not None:
            folder.world = world
            resume = folder.prepare(config)
        few = torch.linspace(0, len(rows) - 1, min(FEW_ROWS, len(rows))).long().unique()
        probe = functools.partial(self._probe, model, rows[few.to(rows.device)], *samples.read(few))
        data = self._epoch(samples, rows, world)
        reduced_data = None if reduced is None else replace(data, samples=reduced[0], rows=reduced[1])
        trainer = Trainer(model, phases, data, settings, folder, validate, probe, callback, reduced_data, measure)
        self._run(trainer, resume, callback)
        return trainer

    def _run(self, trainer: Trainer, resume: bool, callback: Callback) -> None:
        """Run all phases; on a TrainingError restore the last good state, and let `_save_run` raise the error."""
        callback.on_start(self.resolved_)
        self._stopped: TrainingError | None = None
        try:
            try:
                trainer.run(resume)
            except TrainingError as error:
                if not trainer.fall_back():
                    raise
                self._stopped = error  # raised by `_save_run`, once the last good state is saved
        except BaseException as error:
            if trainer.folder is not None:
                trainer.folder.release()
            callback.on_end(error)
            raise
        callback.on_end(self._stopped)
        self.history_, self.skipped_steps_ = trainer.history, trainer.skipped_steps
        self.fit_seconds_ = trainer.times().wall

    def _probe(
        self, model: GPPriorVAE, rows: Rows, y: Tensor, mask: Tensor | None, weights: LatentPosterior | None
    ) -> list[Tensor] | None:
        """Predictions at a few training rows, given q(B); None while the model cannot predict yet."""
        return None

    def _resolve(self, model: GPPriorVAE, phases: list[Phase], samples: Samples) -> dict[str, Any]:
        """The settings as trained, with defaults filled in, and the phases."""
        autoencoder = model.autoencoder
        options = self._network_options
        network: tuple[str, int | None] = choose_network(self.network, samples.shape, options["width"])
        if self.encoder is not None:
            network = OWN, None
        longest = max((phase.epochs for phase in phases), default=1)
        given = {name: value for name, value in settings_of(self).items() if name not in WRITES_PHASES}
        given.pop("pixel_var")  # part of the likelihood
        return given | {
            "latent_dim": model.prior.n_latents,
            "network": network[0],
            "width": network[1],
            "members": options["members"],
            "encoder": type(autoencoder.encoder).__name__,
            "decoder": type(autoencoder.decoder).__name__,
            "likelihood": autoencoder.likelihood.config(),
            "batch_size": self._rows_per_batch,
            "scale": samples.scale,
            "validate_every": self.validate_every or max(1, longest // VALIDATIONS),
            "phases": [phase.to_json() for phase in phases],
        }

    def _save_run(self, folder: RunFolder | None) -> None:
        """Save the model in its run folder; processes continue once the file exists.

        If training stopped on non-finite values, the last good state is saved and the error raised here.
        """
        if folder is not None:
            try:
                self.save(Path(folder.path))
                current_world().barrier()
            finally:
                folder.release()
        if self._stopped is not None:
            raise self._stopped

    def _meta(self) -> dict[str, Any]:
        """Metadata of a model file, as JSON values."""
        return {
            "kind": self.kind,
            "given": settings_of(self),
            "trained": self.resolved_,
            "own": custom_classes(self),
            "shape": list(self.shape_),
            "layout": self.layout_,
            "names": self.sample_names_,
            "integer_names": self.integer_names_,
            "history": self.history_,
            "fit_seconds": self.fit_seconds_,
            "skipped_steps": self.skipped_steps_,
        }

    @classmethod
    def _opened(
        cls: type[Self], path: str | os.PathLike[str], again: dict[str, Any], device: str | None
    ) -> tuple[Self, dict[str, Tensor], dict[str, Any]]:
        """An estimator with saved settings but without its model; tensors and metadata of the file.

        Args:
            again: constructor arguments that load() accepts, None if not given.
        """
        find_device(device)
        tensors, meta = load_model(path, cls.kind)
        check_given_again(meta["own"], again, path, "load()")
        if again.get("likelihood") is not None:
            check_same_likelihood(again["likelihood"], meta["trained"]["likelihood"])
        given_again = {name: value for name, value in again.items() if value is not None}
        with checked_content(model_file(path)):
            check_settings_saved(cls, meta["given"], meta["trained"])
            self = cls(**(arguments(meta["given"]) | given_again), device=device)
            self._check_settings()
            self.shape_, self.layout_, self.sample_names_ = tuple(meta["shape"]), meta["layout"], meta["names"]
            self.integer_names_ = meta.get("integer_names", False)
            self._sees_mask = meta["trained"]["encoder"] == MaskedEncoder.__name__
            self.resolved_, self.history_ = meta["trained"], meta["history"]
            self.fit_seconds_, self.skipped_steps_ = float(meta["fit_seconds"]), meta["skipped_steps"]
            self._restore_network_sizes(meta["trained"])
        return self, tensors, meta

    def _restore_network_sizes(self, trained: dict[str, Any]) -> None:
        """Set width and members of the networks from a saved model."""
        if trained["width"] is not None:
            whole("width", trained["width"], 1, MAX_WIDTH)
        whole("members", trained["members"], 1, MAX_MEMBERS)
        self._chosen_width, self._chosen_members = trained["width"], trained["members"]

    def _data_facts(self, samples: Samples, rows: Rows) -> dict[str, Any]:
        codes = {
            key: zlib.crc32(column.index.cpu().numpy().tobytes(), zlib.crc32(column.values.cpu().numpy().tobytes()))
            for key, column in rows.columns.items()
        }
        few, _ = samples.read(torch.linspace(0, len(samples) - 1, min(16, len(samples))).long().unique())
        probe = zlib.crc32(few.numpy().tobytes())
        return {"n_samples": len(samples), "shape": list(samples.shape), "columns": codes, "few_samples": probe}

    # -- methods of any autoencoder

    @property
    def _autoencoder(self) -> Autoencoder:
        return self._fitted_model.autoencoder

    @torch.no_grad()
    def encode(
        self, samples: Any, return_std: bool = False, out: Folder = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Means of q(z | y), (N, latent_dim); with `return_std` also its standard deviations.

        Args:
            out: folder for mean.npy and std.npy, which are returned as memory maps.
        """
        model, epoch = self._fitted_model, self._batches(samples)
        names = ("mean", "std") if return_std else ("mean",)
        with Outputs(out, names, (epoch.n_rows, model.prior.n_latents)) as arrays:
            for batch in epoch:
                mean, var = model.autoencoder.encode(batch.y, batch.mask)
                arrays.put(mean=mean, **({"std": var.sqrt()} if return_std else {}))
        return (arrays["mean"], arrays["std"]) if return_std else arrays["mean"]

    @torch.no_grad()
    def reconstruct(self, samples: Any, out: Folder = None) -> np.ndarray:
        """Decode the encoder means of samples; same shape as the input, and a DataFrame for a DataFrame.

        Args:
            out: folder for mean.npy, which is returned as a memory map.
        """
        autoencoder, epoch = self._autoencoder, self._batches(samples)
        layout = epoch.samples.layout_in
        with Outputs(out, ("mean",), shape_out(epoch.n_rows, self.shape_, layout)) as arrays:
            for batch in epoch:
                arrays.put(mean=to_input_layout(autoencoder.reconstruct(batch.y, batch.mask), layout))
        return framed(arrays["mean"], self._labels, samples)

    def export_decoder(self) -> torch.export.ExportedProgram:
        """The decoder as a torch.export graph: latents (N, latent_dim) float32 -> mean samples.

        It runs without this package: `torch.export.save(model.export_decoder(), "decoder.pt2")`. `predict_latent` gives
        the latents of rows.
        """
        return export_decoder(self._autoencoder, self.layout_, self._fitted_model.prior.n_latents)

    def to_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Write the decoder as an ONNX file: input `z`, (N, latent_dim) float32, output `mean`; needs gppvae[onnx].

        Args:
            path: of the file.
        """
        return write_onnx(self._autoencoder, self.layout_, self._fitted_model.prior.n_latents, path)

    def _seed_of(self, seed: int | None) -> int:
        """The seed of a call; that of the estimator when None."""
        if seed is None:
            return self.seed
        whole("seed", seed, 0, MAX_SEED)
        return int(seed)

    @property
    def _labels(self) -> list[str] | list[int] | None:
        """Names of the values of a sample as columns of DataFrames, as those of the training samples were."""
        names = self.sample_names_
        return [int(name) for name in names] if names is not None and self.integer_names_ else names

    def _batches(self, samples: Any) -> Epoch:
        data = self._samples(samples)
        data.check()
        return self._epoch(data, Rows({}, len(data)))

    def _epoch(self, samples: Samples, rows: Rows, world: World = ALONE) -> Epoch:
        """One pass over samples and coded rows, in the order of the data."""
        return Epoch(samples, rows, self._rows_per_batch, None, self._torch_device(), world=world)


def log_missing(samples: Samples) -> None:
    """Log the number of missing values; warn of channels and samples without any observed value."""
    found = samples.missing_values
    if not found.total or not first_process():
        return
    log.info("%s; the encoder sees which", found.count())
    for remark in found.remarks(len(samples.shape) == 1, samples.names):
        log.warning(remark)


def warn_coarse(samples: Samples) -> None:
    """Warn of values whose differences are lost in float32."""
    if samples.coarse_values and first_process():
        first, more = samples.coarse_values[:5], " ..." if len(samples.coarse_values) > 5 else ""
        which = ", ".join(str(n) if samples.names is None else repr(samples.names[n]) for n in first) + more
        log.warning("values far from zero differ by too little for float32 (%s): subtract their means first", which)


def _measure_sizes(likelihood: Likelihood, samples: Samples, rows: Rows, world: World) -> None:
    """Pass the sizes of the training samples to a likelihood of counts; a size of zero is an error."""
    if likelihood.needs_totals:
        likelihood.measure_sizes(samples.totals(world).to(likelihood.unit))
    elif likelihood.size_column is not None:
        given = sizes_in(rows)
        if given is None:
            raise ValueError(
                f"expected a table with the sizes in a column {likelihood.size_column!r}, got none; "
                "use size='total' for the totals of the samples"
            )
        likelihood.measure_sizes(given.to(likelihood.unit))


def _digests(config: dict[str, Any], samples: Samples) -> dict[str, str]:
    """Digests of the settings, table and samples, which must be the same in all processes."""
    texts = {
        "settings": json.dumps([config["given"], config["trained"]], sort_keys=True, default=str),
        "table": json.dumps(config["data"]["columns"], sort_keys=True),
        "samples": json.dumps([config["data"], samples.checksum()], sort_keys=True),
    }
    return {name: hashlib.sha256(text.encode(errors="replace")).hexdigest() for name, text in texts.items()}
