"""The plan of a fit: prior, phases and start, with every choice that was left open made from the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gppvae.data.arrays import Samples
from gppvae.data.batches import derive_seed
from gppvae.data.table import Table
from gppvae.estimator.choices import (
    LEAST_SIGNAL,
    SCHEDULES,
    Networks,
    Schedule,
    choose_held_out,
    choose_inference,
    choose_learned_dims,
    choose_networks,
    is_few,
    length_for,
    tell,
    written_phases,
)
from gppvae.estimator.settings import OPEN, Groups
from gppvae.inference.phase import Phase
from gppvae.kernels import IdLeaf, InducingLeaf, Kernel, Learned
from gppvae.kernels.not_applicable import rows_that_apply
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.likelihoods import Gaussian, Likelihood, ScaledGaussian
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

if TYPE_CHECKING:
    from gppvae.estimator.gppvae import GPPVAE

NOISES = (0.02, 1.0)  # of a value, relative to its variance, that a linear start may set
ALPHAS = (0.01, 1.0)  # latent noise that a linear start may set


@dataclass(frozen=True)
class Plan:
    """What a fit runs.

    Attributes:
        prior: bound to the table.  phases: of the training.  batch_size: B.  networks: their sizes.
        components: of the samples, where the fit starts from them.
    """

    prior: LatentPrior
    phases: list[Phase]
    batch_size: int
    networks: Networks
    components: Components | None

    def start_networks(self, autoencoder: Autoencoder) -> None:
        """Start the networks for vectors, and the noise, at the linear model of the components."""
        encoder, decoder, likelihood = autoencoder.encoder, autoencoder.decoder, autoencoder.likelihood
        encoder = encoder.encoder if isinstance(encoder, MaskedEncoder) else encoder
        linear = isinstance(encoder, LinearPlusEncoder) and isinstance(decoder, LinearPlusDecoder)
        if self.components is None or not linear or not isinstance(likelihood, ScaledGaussian):
            return
        alpha = float(self.prior.groups[0].alpha.detach())
        start_linear(encoder.linear, decoder.linear, self.components, alpha)  # type: ignore[arg-type]
        left = unexplained_variance(self.components, self.prior.n_latents)
        likelihood.var.copy_(left.clamp(*NOISES).reshape(likelihood.var.shape))


def plan_fit(estimator: GPPVAE, groups: Groups, samples: Samples, table: Table, held: np.ndarray) -> Plan:
    """Bind the kernels to the table and make the choices that the estimator left open.

    Args:
        groups: kernels, not bound yet, with their numbers of latents.  held: positions of rows held out.
    """
    kernels = [kernel for kernel, _ in groups if kernel is not None]
    likelihood = estimator._make_likelihood()
    gaussian = isinstance(likelihood.values, (Gaussian, ScaledGaussian))
    few = estimator._chooses and gaussian and is_few(len(samples) - len(held), samples.shape)
    choose_learned_dims(kernels, table, few)
    generator = torch.Generator().manual_seed(derive_seed(estimator.seed, 1))
    LatentPrior([(kernel, size or 1) for kernel, size in groups]).bind(table, generator)
    given = None if any(size == OPEN for _, size in groups) else sum(size for _, size in groups)
    few_images = (
        few and len(samples.shape) == 3 and estimator.encoder is None and estimator.network in ("auto", "image")
    )
    networks = choose_networks(few_images, math.prod(samples.shape), given, estimator.members)
    most = networks.latents
    if not estimator._chooses:
        closed = [(kernel, most if size == OPEN else size) for kernel, size in groups]
        phases = estimator._phases(unexplained=any(kernel is None for kernel, _ in groups))
        if len(held):
            phases = [replace(phase, held_out=True) for phase in phases]
        alpha = estimator.alpha if estimator.alpha is not None else min(phase.kind.alpha for phase in phases)
        return Plan(LatentPrior(closed, alpha), phases, estimator._rows_per_batch, networks, None)
    components = _start(likelihood, kernels, samples, table, held, generator)
    linear = len(samples.shape) == 1 and isinstance(likelihood, ScaledGaussian) and networks.members == 1
    linear = linear and estimator.network in ("auto", "vector") and estimator.encoder is None
    if linear and components is not None:
        most = min(most, components.count(LEAST_SIGNAL))
    closed = [(kernel, most if size == OPEN else size) for kernel, size in groups]
    if any(size == OPEN for _, size in groups):
        tell("%d latents for samples of shape %s", most, "x".join(map(str, samples.shape)))
    n_rows = len(samples) - len(held)
    rank = max(kernel.rank for kernel in kernels)
    inference = choose_inference(n_rows, samples.shape, rank, gaussian)
    exact = linear and not any(isinstance(leaf, Learned) for kernel in kernels for leaf in kernel.leaves())
    schedule = SCHEDULES[inference, "image" if len(samples.shape) == 3 else "vector" if exact else "other"]
    alpha = _alpha(estimator, inference, schedule, components if linear else None, most)
    batch_size = estimator.batch_size or schedule.batch_size
    share = length_for(samples.shape, inference == "leave_out")
    epochs = estimator.epochs if estimator.epochs is not None else schedule.epochs(n_rows, batch_size, share)
    rates = {name: value for name in ("lr", "prior_lr") if (value := getattr(estimator, name)) is not None}
    unexplained = any(kernel is None for kernel, _ in groups)
    tried = exact and estimator.epochs is None
    phases = written_phases(inference, replace(schedule, **rates), epochs, unexplained, len(held) > 0, tried)
    tell("%d epochs of %d steps, batches of %d", epochs, -(-n_rows // batch_size), batch_size)
    if len(held):
        tell("%d of %d rows are held out to measure errors, then trained on as well", len(held), len(samples))
    return Plan(LatentPrior(closed, alpha), phases, batch_size, networks, components)


def _alpha(estimator: GPPVAE, inference: str, schedule: Schedule, linear: Components | None, n_latents: int) -> float:
    """Latent noise: as given, as the linear start found it, or as the schedule has it."""
    if estimator.alpha is not None:
        return estimator.alpha
    if linear is None or inference == "global":
        return schedule.alpha
    signal, variance = linear.signal[:n_latents], linear.std[:n_latents].square()
    found = float((variance * (1.0 - signal)).sum() / (variance * signal).sum())
    return min(max(found, ALPHAS[0]), ALPHAS[1])


def _start(
    likelihood: Likelihood,
    kernels: Sequence[Kernel],
    samples: Samples,
    table: Table,
    held: np.ndarray,
    generator: torch.Generator,
) -> Components | None:
    """Fit the hyper-parameters of all kernels to the principal components of some training rows."""
    kept = np.setdiff1d(np.arange(len(samples)), held)
    prior = LatentPrior([(kernel, 1) for kernel in kernels])
    all_rows = prior.code(table.take(kept))
    index = rows_for_start(all_rows, list(kernels), generator)
    y, mask = samples.read(torch.from_numpy(kept)[index])
    likelihood.adapt(samples.shape)
    seen = likelihood.encoder_input(y)
    scores, loadings, std = principal_components(seen, mask)
    values = some_values(seen, mask)
    rows = all_rows[index.to(all_rows.device)]
    signal, of_values = torch.zeros(scores.shape[1], dtype=torch.float64), None
    for kernel in kernels:
        own, own_values = fit_components(kernel, rows, scores, values)
        signal = torch.maximum(signal, own)
        of_values = own_values if of_values is None or own_values is None else torch.maximum(of_values, own_values)
        for leaf in kernel.leaves():
            if isinstance(leaf, InducingLeaf) and not leaf.complete:
                leaf.choose_inducing_again(
                    rows_that_apply(leaf, kernel.terms(), table)
                )  # for the length scale that was found
            if isinstance(leaf, StationaryLeaf):
                lengths = ", ".join(f"{float(value):.3g}" for value in leaf.base.lengthscale.detach().reshape(-1))
                tell("%s: length scale %s, by an exact fit to principal components", leaf.text(), lengths)
                leaf.base.requires_grad_(False)
    return Components(loadings, std, signal, None if of_values is None else spread_over(of_values, loadings.shape[1]))


def rows_held_out(
    estimator: GPPVAE, groups: Groups, table: Table, shape: tuple[int, ...], validated: bool
) -> np.ndarray:
    """Positions of the rows that are not trained on at first; none where the user gave rows to validate on."""
    if validated or (estimator.hold_out is None and not estimator._chooses):
        return np.zeros(0, dtype=np.int64)
    ids = [leaf.column for kernel, _ in groups if kernel for leaf in kernel.leaves() if isinstance(leaf, IdLeaf)]
    return choose_held_out(table, list(dict.fromkeys(ids)), estimator.hold_out, estimator.seed, shape)
