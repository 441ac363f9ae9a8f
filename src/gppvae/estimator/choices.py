"""Rules that choose the settings a user left open: sizes, inference, length, held-out rows.

Every choice is logged in one line. The reasons are in docs/inference.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gppvae.data.subset import hold_out
from gppvae.data.table import Table
from gppvae.inference.phase import Phase
from gppvae.kernels import IdLeaf, InducingLeaf, Kernel, Learned
from gppvae.training.distributed import first_process

log = logging.getLogger("gppvae")

LATENTS = 64
MEMBERS, MEMBER_LATENTS, MEMBER_WIDTH = 3, 32, 16  # of the ensemble for few images
MOST_MEMBERS = 6  # for large images, whose members are trained for fewer steps
LEAST_MEMBER_LATENTS = 16  # per member, if the number of latents is given
FEW_ROWS = 1000  # of images: up to here leave-out training is better, beyond it global inference
FEW_INDUCING = 64  # inducing points that the search for their number starts from
FEW_FEATURES = 400  # H to aim for with learned vectors, if every batch solves with H x H matrices
MOST_FEATURES = 1024  # H above which such solves cost more than the networks
HELD_OUT = {"image": 0.05, "vector": 0.2}  # share of the rows; vectors are cheap to train on twice
LEAST_HELD_OUT, MOST_HELD_OUT = 4, 256
ENOUGH_HELD_OUT, MOST_SHARE = 18, 0.1  # images for a stable estimate of errors, if they are at most this share
TRIAL_SHARE = 0.6  # of the epochs of a fit to few rows, for the trial that measures errors
ALL_ROWS_SHARE, ALL_ROWS_RATE = 0.3, 0.5  # final share of the epochs on all of many rows; factor on their rates
TOLERANCE = 0.15  # relative growth of the held-out error that counts against the patience
PATIENCE = 15  # validations without improvement at held-out rows before a phase stops
LEAST_SIGNAL = 0.05  # share of a principal component's variance that the kernel must explain for it to become a latent
FULL_LENGTH_VALUES, LEAST_LENGTH = 3 * 64 * 64, 0.3  # largest image trained in full length; least share of it
LEAST_ROWS = 40  # with fewer, none is held out


@dataclass(frozen=True)
class Schedule:
    """Default step sizes and length of an inference.

    Attributes:
        passes: over the rows, within `least` and `most` optimiser steps.
        batch_size: B.  lr, prior_lr: of networks and prior.  weight_decay: of the networks.
        alpha: latent noise variance.
    """

    passes: float
    least: int
    most: int
    batch_size: int
    lr: float
    prior_lr: float
    weight_decay: float
    alpha: float

    def epochs(self, n_rows: int, batch_size: int, share: float = 1.0) -> int:
        """Epochs that make between `least` and `most` steps, times `share`."""
        per_epoch = -(-n_rows // batch_size)
        steps = share * min(max(self.passes * n_rows / batch_size, self.least), self.most)
        return max(1, math.ceil(steps / per_epoch))


# By inference and kind of samples: images, vectors that start at the exact linear fit, other vectors.
SCHEDULES = {
    ("leave_out", "image"): Schedule(130, 800, 8000, 32, 3e-3, 1e-2, 0.3, 0.05),
    ("leave_out", "vector"): Schedule(30, 200, 4000, 32, 5e-4, 5e-3, 0.1, 0.1),
    ("leave_out", "other"): Schedule(130, 1500, 8000, 32, 2e-3, 1e-2, 0.05, 0.05),
    ("global", "image"): Schedule(110, 2500, 20000, 64, 4e-3, 1e-2, 1.0, 0.001),
    ("global", "vector"): Schedule(45, 2500, 20000, 64, 2e-3, 1e-2, 0.05, 0.001),
    ("global", "other"): Schedule(45, 2500, 20000, 64, 4e-3, 1e-2, 0.05, 0.001),
}


def choose_learned_dims(kernels: Sequence[Kernel], table: Table, few: bool) -> None:
    """Set the dimension of every `Learned` kernel that has none.

    One entry per id can represent any covariance of ids. With few rows the number of features is limited as well.

    Args:
        kernels: not bound yet.  few: whether every batch solves with all features.
    """
    for kernel in kernels:
        for leaf in kernel.leaves():
            if isinstance(leaf, Learned) and leaf.open_dim:
                levels = len(table.levels(leaf.column))
                dim = min(levels, LATENTS)
                others = max((_other_features(term.leaves, leaf, table) for term in kernel.terms()), default=1)
                if few:
                    dim = max(1, min(dim, max(8, FEW_FEATURES // others)))
                leaf.choose_dim(dim)
                log_choice("%s: vectors of %d numbers for %d ids", leaf.text(), dim, levels)


def _other_features(leaves: Sequence[object], own: Learned, table: Table) -> int:
    """Estimated number of features of the other factors of a term, from their distinct values."""
    if own not in leaves:
        return 1
    sizes = [1]
    for leaf in leaves:
        if isinstance(leaf, IdLeaf) and leaf is not own:
            sizes.append(len(table.levels(leaf.column)))
        elif isinstance(leaf, InducingLeaf):
            distinct = len(pd.DataFrame({name: table[name] for name in leaf.columns_read}).drop_duplicates())
            sizes.append(min(distinct, leaf.max_inducing or FEW_INDUCING))
    return math.prod(sizes)


@dataclass(frozen=True)
class Networks:
    """Sizes of the networks.

    Attributes:
        latents: L, if it is open.  members: of the ensemble.  width: of the layers, the network's default when None.
    """

    latents: int
    members: int = 1
    width: int | None = None


def choose_networks(
    few_images: bool, shape: tuple[int, ...], given: Sequence[int | None], given_members: int | None
) -> Networks:
    """Sizes of named networks: for few images an ensemble of small ones, whose average overfits least.

    Args:
        few_images: whether samples are images and few.  shape: of a sample.
        given: latents of each group as the user gave them, None if open.  given_members: likewise.
    """
    most = math.prod(shape)
    if not few_images:
        return Networks(min(LATENTS, most), given_members or 1)
    known = [size for size in given if size is not None]
    default = min(round(MEMBERS / relative_length(shape, few=True)), MOST_MEMBERS)
    affordable = min([default, most, *known])  # every group needs a latent for every member
    if len(known) == len(given):
        affordable = min(affordable, sum(known) // LEAST_MEMBER_LATENTS)
    members = given_members or max(1, affordable)
    if members == 1:
        return Networks(min(LATENTS, most))
    log_choice("an ensemble of %d networks, which predict by their average", members)
    return Networks(min(MEMBER_LATENTS * members, most), members, MEMBER_WIDTH)


def is_few(n_rows: int, shape: tuple[int, ...]) -> bool:
    """Whether this number of rows is small for samples of this shape."""
    return n_rows <= (FEW_ROWS if len(shape) == 3 else 20 * FEW_ROWS)


def choose_inference(n_rows: int, shape: tuple[int, ...], rank: int, additive: bool) -> str:
    """The inference for these numbers of rows and features.

    Args:
        additive: whether the noise is additive; otherwise global inference is faster and better with few rows too.
    """
    few = additive and is_few(n_rows, shape) and rank <= MOST_FEATURES
    name = "leave_out" if few else "global"
    log_choice("%s inference for %d samples and %d features", name, n_rows, rank)
    return name


def relative_length(shape: tuple[int, ...], few: bool) -> float:
    """Length of a fit relative to the full one: few large images are overfitted sooner, and their steps cost more."""
    return min(1.0, max(FULL_LENGTH_VALUES / math.prod(shape), LEAST_LENGTH)) if few and len(shape) == 3 else 1.0


def choose_held_out(
    table: Table, ids: Sequence[str], share: float | None, seed: int, shape: tuple[int, ...]
) -> np.ndarray:
    """Positions of the rows to hold out; none if too few would remain.

    Args:
        ids: columns in which every id keeps at least two rows.
        share: of the rows; chosen when None.  shape: of a sample.
    """
    n = len(table)
    if share == 0.0 or n < LEAST_ROWS:
        return np.zeros(0, dtype=np.int64)
    default = max(HELD_OUT["image" if len(shape) == 3 else "vector"], min(ENOUGH_HELD_OUT / n, MOST_SHARE))
    wanted = share or min(max(default, LEAST_HELD_OUT / n), MOST_HELD_OUT / n)
    try:
        return hold_out(table, wanted, ids, seed, least_left=2)[1]
    except ValueError:
        return np.zeros(0, dtype=np.int64)


def written_phases(
    inference: str, schedule: Schedule, epochs: int, unexplained: bool, held_out: bool, linear: bool
) -> list[Phase]:
    """The phases of a fit whose settings were chosen.

    With held-out rows, a trial without them measures errors first. With few rows, training then restarts on all rows,
    since networks that have converged without a row hardly learn it. Networks that start at the exact linear model are
    trained for as long as the held-out errors of the trial improved, which may be zero epochs. With many rows, only
    the last part of the training sees all rows.

    Args:
        unexplained: whether some latents have no kernel.  held_out: whether rows are held out.
        linear: whether the networks start at the exact linear model with their length open.
    """
    rates = {"decoder": schedule.lr, "prior": schedule.prior_lr}
    if inference == "leave_out":
        rates |= {"encoder": schedule.lr, "noise": schedule.prior_lr}
    else:
        rates |= {"weights": schedule.prior_lr} | ({"encoder": schedule.lr / 4.0} if unexplained else {})
    phase = Phase(inference, inference, epochs, rates, "cosine", 0.03, schedule.weight_decay)
    phases = [phase]
    if held_out and inference == "leave_out":
        trial_epochs = epochs if linear else math.ceil(TRIAL_SHARE * epochs)
        trial = replace(phase, name="tried", epochs=trial_epochs, held_out=True)
        phases = [trial, replace(phase, restart=True, until_best=linear)]
    elif held_out:
        after = round(ALL_ROWS_SHARE * epochs)
        lower = {name: ALL_ROWS_RATE * rate for name, rate in rates.items()}
        phases = [replace(phase, epochs=epochs - after, held_out=True)]
        phases += [replace(phase, name="all rows", epochs=after, lr=lower)] if after else []
    if inference == "global":
        phases.append(Phase("encoder", "distill", max(1, epochs // 10), {"encoder": schedule.lr / 2.0}, "cosine"))
    return phases


def log_choice(message: str, *values: object) -> None:
    """Log a choice, in the first process."""
    if first_process():
        log.info(message, *values)
