"""The plan of a fit: prior, phases and initial values, with open settings chosen from the data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gppvae.data.arrays import Samples
from gppvae.data.batches import derive_seed
from gppvae.data.table import Table
from gppvae.estimator.choices import (
    LEAST_ROWS,
    LEAST_SIGNAL,
    SCHEDULES,
    Networks,
    Schedule,
    choose_held_out,
    choose_inference,
    choose_learned_dims,
    choose_networks,
    is_few,
    log_choice,
    relative_length,
    written_phases,
)
from gppvae.estimator.settings import OPEN, Groups
from gppvae.inference.phase import Phase
from gppvae.kernels import IdLeaf, InducingLeaf, Kernel, Learned
from gppvae.kernels.not_applicable import rows_that_apply
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.likelihoods import Likelihood, ScaledGaussian
from gppvae.models.start import (
    Components,
    fit_components,
    principal_components,
    rows_for_start,
    some_values,
    spread_over,
    start_linear,
    unexplained_variance,
)
from gppvae.models.vae import Autoencoder
from gppvae.nets.masked import MaskedEncoder
from gppvae.nets.mlp import LinearPlusDecoder, LinearPlusEncoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.distributed import first_process

if TYPE_CHECKING:
    from gppvae.estimator.gppvae import GPPVAE

log = logging.getLogger("gppvae")

NOISE_RANGE = (0.005, 1.0)  # initial noise of a value relative to its variance, from the linear start
LEAST_NOISE_IF_MISSING = 0.02  # lower end of the range if values are missing
ALPHA_RANGE = (0.001, 1.0)  # initial latent noise from the linear start; growth curves have little


@dataclass(frozen=True)
class Plan:
    """Prior, phases and initial values of a fit.

    Attributes:
        prior: bound to the table.  phases: of training.  batch_size: B.  networks: their sizes.
        components: principal components of the samples, if the fit starts from them.
    """

    prior: LatentPrior
    phases: list[Phase]
    batch_size: int
    networks: Networks
    components: Components | None

    def start_networks(self, autoencoder: Autoencoder) -> None:
        """Initialise networks for vectors, and the noise, at the linear model of the components."""
        encoder, decoder, likelihood = autoencoder.encoder, autoencoder.decoder, autoencoder.likelihood
        encoder = encoder.encoder if isinstance(encoder, MaskedEncoder) else encoder
        linear = isinstance(encoder, LinearPlusEncoder) and isinstance(decoder, LinearPlusDecoder)
        if self.components is None or not linear or not isinstance(likelihood, ScaledGaussian):
            return
        alpha = float(self.prior.groups[0].alpha.detach())
        start_linear(encoder.linear, decoder.linear, self.components, alpha)  # type: ignore[arg-type]
        noise = unexplained_variance(self.components, self.prior.n_latents)
        least = NOISE_RANGE[0] if self.components.value_signal is None else LEAST_NOISE_IF_MISSING
        likelihood.var.copy_(noise.clamp(least, NOISE_RANGE[1]).reshape(likelihood.var.shape))


def plan_fit(estimator: GPPVAE, groups: Groups, samples: Samples, table: Table, held: np.ndarray) -> Plan:
    """Bind the kernels to the table and choose the open settings of the estimator.

    Args:
        groups: kernels, not bound yet, with their numbers of latents.  held: positions of the held-out rows.
    """
    planner = _Planner(estimator, groups, samples, table, held)
    planner.bind()
    return planner.chosen() if estimator._chooses else planner.given()


class _Planner:
    """The steps of `plan_fit`, with its arguments."""

    def __init__(self, estimator: GPPVAE, groups: Groups, samples: Samples, table: Table, held: np.ndarray) -> None:
        self.estimator, self.groups, self.samples, self.table, self.held = estimator, groups, samples, table, held
        self.kernels = [kernel for kernel, _ in groups if kernel is not None]
        self.unexplained = len(self.kernels) < len(groups)  # whether some latents have no kernel
        self.likelihood = estimator._make_likelihood()
        self.additive = self.likelihood.values.additive_noise
        self.n_rows = len(samples) - len(held)
        self.generator = torch.Generator().manual_seed(derive_seed(estimator.seed, 1))

    def bind(self) -> None:
        """Choose dimensions of learned vectors, bind the kernels, choose sizes of the networks."""
        samples, estimator = self.samples, self.estimator
        few = estimator._chooses and self.additive and is_few(self.n_rows, samples.shape)
        choose_learned_dims(self.kernels, self.table, few)
        LatentPrior([(kernel, size or 1) for kernel, size in self.groups]).bind(self.table, self.generator)
        by_name = estimator.encoder is None and estimator.network in ("auto", "image")
        sizes = [None if size == OPEN else size for _, size in self.groups]
        few_images = few and len(samples.shape) == 3 and by_name
        self.networks = choose_networks(few_images, samples.shape, sizes, estimator.members)

    def given(self) -> Plan:
        """The plan for a given inference or given phases."""
        estimator = self.estimator
        phases = estimator._phases(unexplained=self.unexplained)
        if len(self.held):
            phases = [replace(phase, held_out=True) for phase in phases]
        alpha = estimator.alpha if estimator.alpha is not None else min(phase.kind.alpha for phase in phases)
        return self._plan(alpha, self.networks.latents, phases, estimator._rows_per_batch, None)

    def chosen(self) -> Plan:
        """The plan with inference and length chosen from the data."""
        estimator, shape = self.estimator, self.samples.shape
        components = _fit_start(self.likelihood, self.kernels, self.samples, self.table, self.held, self.generator)
        linear = components if self._starts_linear() else None
        latents = self.networks.latents
        if linear is not None:
            latents = min(latents, linear.count(LEAST_SIGNAL))
        if any(size == OPEN for _, size in self.groups):
            log_choice("%d latents for samples of shape %s", latents, "x".join(map(str, shape)))
        rank = max(kernel.rank for kernel in self.kernels)
        inference = choose_inference(self.n_rows, shape, rank, self.additive)
        # Learned vectors start at random, so with them the linear model is not a fit.
        learned = any(isinstance(leaf, Learned) for kernel in self.kernels for leaf in kernel.leaves())
        exact = self._starts_linear() and not learned
        schedule = SCHEDULES[inference, "image" if len(shape) == 3 else "vector" if exact else "other"]
        alpha = _alpha(estimator, inference, schedule, linear, latents)
        batch_size = estimator.batch_size or schedule.batch_size
        share = relative_length(shape, inference == "leave_out")
        epochs = estimator.epochs if estimator.epochs is not None else schedule.epochs(self.n_rows, batch_size, share)
        rates = {name: value for name in ("lr", "prior_lr") if (value := getattr(estimator, name)) is not None}
        open_length = exact and estimator.epochs is None
        held_out = len(self.held) > 0
        phases = written_phases(inference, replace(schedule, **rates), epochs, self.unexplained, held_out, open_length)
        log_choice("%d epochs of %d steps, batches of %d", epochs, -(-self.n_rows // batch_size), batch_size)
        if held_out:
            message = "%d of %d rows are held out to measure errors, then trained on as well"
            log_choice(message, len(self.held), len(self.samples))
        return self._plan(alpha, latents, phases, batch_size, components)

    def _starts_linear(self) -> bool:
        """Whether the networks can start at the linear model of the components."""
        estimator = self.estimator
        by_name = estimator.encoder is None and estimator.network in ("auto", "vector")
        vectors = len(self.samples.shape) == 1 and isinstance(self.likelihood, ScaledGaussian)
        return by_name and vectors and self.networks.members == 1

    def _plan(
        self, alpha: float, latents: int, phases: list[Phase], batch_size: int, components: Components | None
    ) -> Plan:
        """The plan with the prior of all groups; groups with an open number of latents get `latents`."""
        closed = [(kernel, latents if size == OPEN else size) for kernel, size in self.groups]
        prior = _prior_of_members(closed, alpha, self.networks.members, self.generator)
        return Plan(prior, phases, batch_size, self.networks, components)


def _prior_of_members(groups: Groups, alpha: float, members: int, generator: torch.Generator) -> LatentPrior:
    """The prior, with a copy of the kernels per member of an ensemble, each with other initial vectors."""
    prior = LatentPrior(groups, alpha, members)
    for group in (group for copies in prior.written_groups for group in copies[1:]):
        for leaf in [] if group.kernel is None else group.kernel.leaves():
            if isinstance(leaf, Learned):
                leaf.create(generator)
    return prior


def _alpha(estimator: GPPVAE, inference: str, schedule: Schedule, linear: Components | None, n_latents: int) -> float:
    """Initial latent noise: given, from the linear start, or from the schedule."""
    if estimator.alpha is not None:
        return estimator.alpha
    if linear is None or inference == "global":
        return schedule.alpha
    signal, variance = linear.signal[:n_latents], linear.std[:n_latents].square()
    found = float((variance * (1.0 - signal)).sum() / (variance * signal).sum())
    return min(max(found, ALPHA_RANGE[0]), ALPHA_RANGE[1])


def _fit_start(
    likelihood: Likelihood,
    kernels: Sequence[Kernel],
    samples: Samples,
    table: Table,
    held: np.ndarray,
    generator: torch.Generator,
) -> Components:
    """Fit the hyper-parameters of all kernels to principal components of some training rows."""
    kept = np.setdiff1d(np.arange(len(samples)), held)
    prior = LatentPrior([(kernel, 1) for kernel in kernels])
    all_rows = prior.code(table.take(kept))
    index = rows_for_start(all_rows, list(kernels), generator)
    y, mask = samples.read(torch.from_numpy(kept)[index])
    if mask is not None and mask.any():  # a sample without any observed value says nothing
        observed = mask.flatten(1).any(1)
        index, y, mask = index[observed], y[observed], mask[observed]
    likelihood.adapt(samples.shape)
    seen = likelihood.encoder_input(y)
    scores, loadings, std = principal_components(seen, mask)
    values = some_values(seen, mask)
    rows = all_rows[index.to(all_rows.device)]
    signal, of_values = torch.zeros(scores.shape[1], dtype=torch.float64), None
    for kernel in kernels:
        own, own_values = fit_components(kernel, rows, scores, std, values)
        signal = torch.maximum(signal, own)
        of_values = own_values if of_values is None or own_values is None else torch.maximum(of_values, own_values)
        for leaf in kernel.leaves():
            if isinstance(leaf, InducingLeaf) and not leaf.complete:
                leaf.choose_inducing_again(rows_that_apply(leaf, kernel.terms(), table))  # for the new length scale
            if isinstance(leaf, StationaryLeaf):
                lengths = ", ".join(f"{float(value):.3g}" for value in leaf.base.lengthscale.detach().reshape(-1))
                log_choice("%s: length scale %s, by an exact fit to principal components", leaf.text(), lengths)
                leaf.base.requires_grad_(False)
    return Components(loadings, std, signal, None if of_values is None else spread_over(of_values, loadings.shape[1]))


def rows_held_out(estimator: GPPVAE, groups: Groups, table: Table, samples: Samples, validated: bool) -> np.ndarray:
    """Positions of the rows to hold out at first; none if the user gave validation data or they observed nothing."""
    none = np.zeros(0, dtype=np.int64)
    if validated or (estimator.hold_out is None and not estimator._chooses):
        return none
    ids = [leaf.column for kernel, _ in groups if kernel for leaf in kernel.leaves() if isinstance(leaf, IdLeaf)]
    found = choose_held_out(table, list(dict.fromkeys(ids)), estimator.hold_out, estimator.seed, samples.shape)
    mask = samples.read(torch.from_numpy(found))[1] if samples.missing == "mask" else None
    found = found if mask is None or mask.any() else none
    if estimator.hold_out and not len(found) and first_process():
        log.warning(
            "hold_out=%g has no effect: it needs %d rows with values, and two more of every id; give validation data",
            estimator.hold_out, LEAST_ROWS,
        )  # fmt: skip
    return found
