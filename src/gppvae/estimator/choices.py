"""What a fit chooses from the data where the user left it open: sizes, inference, length, rows held out.

Every rule is here, in one place, and each choice is one line of the log. docs/inference.md tells why.
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
MEMBERS, MEMBER_LATENTS, MEMBER_WIDTH = 3, 32, 16  # of the ensemble that few images are fitted with
MOST_MEMBERS = 6  # for large images, whose members are trained for less
LEAST_MEMBER_LATENTS = 16  # that a member needs where the number of latents is given
FEW_ROWS = 1000  # of images: up to here training on what the other rows say is ahead, beyond it global inference
FEW_INDUCING = 64  # inducing points that a kernel starts from
FEW_FEATURES = 400  # H that a learned dimension is chosen for where every batch solves with H x H matrices
MOST_FEATURES = 1024  # H beyond which such solves cost more than the networks
HELD_OUT = {"image": 0.05, "vector": 0.2}  # share of the rows; vectors are cheap to fit twice
LEAST_HELD_OUT, MOST_HELD_OUT = 4, 256
ENOUGH_HELD_OUT, AT_MOST = 18, 0.1  # images for a steady size of errors, where that is no larger a share
TRIED = 0.6  # of the epochs of a fit to few rows: enough to measure errors
PUT_BACK, PUT_BACK_RATE = 0.3, 0.5  # share of the epochs that see all of many rows, and their learning rates
TOLERANCE = 0.15  # by which the error at rows held out must have grown to count against the patience
PATIENCE = 15  # validations of a phase without improvement at rows held out before it stops
LEAST_SIGNAL = 0.05  # share of a principal component's variance that the kernel must explain for a latent of its own
USUAL_VALUES, LEAST_SHARE = 3 * 64 * 64, 0.3  # of an image that is trained for the usual length; least share of that
LEAST_ROWS = 40  # below, every row is needed for training


@dataclass(frozen=True)
class Schedule:
    """How an inference is trained when nothing is given: sizes of steps, and how many of them.

    Attributes:
        passes: over the rows, as far as `least` and `most` optimiser steps allow.
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


# By inference and kind of samples: images, vectors that start at the exact linear fit, and others, which do not.
SCHEDULES = {
    ("leave_out", "image"): Schedule(130, 800, 8000, 32, 3e-3, 1e-2, 0.3, 0.05),
    ("leave_out", "vector"): Schedule(30, 200, 4000, 32, 5e-4, 5e-3, 0.1, 0.1),
    ("leave_out", "other"): Schedule(130, 1500, 8000, 32, 2e-3, 1e-2, 0.05, 0.05),
    ("global", "image"): Schedule(110, 2500, 20000, 64, 4e-3, 1e-2, 1.0, 0.001),
    ("global", "vector"): Schedule(45, 2500, 20000, 64, 2e-3, 1e-2, 0.05, 0.001),
    ("global", "other"): Schedule(45, 2500, 20000, 64, 4e-3, 1e-2, 0.05, 0.001),
}


def choose_learned_dims(kernels: Sequence[Kernel], table: Table, few: bool) -> None:
    """Write the dimension of every learned vector that is open.

    One entry per id is enough to tell all ids apart. With few rows the number of features is kept small as well.

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
                tell("%s: vectors of %d numbers for %d ids", leaf.text(), dim, levels)


def _other_features(leaves: Sequence[object], own: Learned, table: Table) -> int:
    """About how many features the factors beside `own` have, judged by distinct values."""
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
        latents: L, where it is open.  members: of the ensemble.  width: of the layers, the network's own when None.
    """

    latents: int
    members: int = 1
    width: int | None = None


def choose_networks(
    few_images: bool, shape: tuple[int, ...], given: Sequence[int | None], given_members: int | None
) -> Networks:
    """Sizes of named networks: an ensemble of small ones for few images, since its average over-fits least.

    Args:
        few_images: whether samples are images and few.  shape: of a sample.
        given: latents of each group as the user wrote them, None where open.  given_members: likewise.
    """
    most = math.prod(shape)
    if not few_images:
        return Networks(min(LATENTS, most), given_members or 1)
    known = [size for size in given if size is not None]
    usual = min(round(MEMBERS / length_for(shape, few=True)), MOST_MEMBERS)
    affordable = min([usual, most, *known])  # every group has latents for every member
    if len(known) == len(given):
        affordable = min(affordable, sum(known) // LEAST_MEMBER_LATENTS)
    members = given_members or max(1, affordable)
    if members == 1:
        return Networks(min(LATENTS, most))
    tell("an ensemble of %d networks, which predict by their average", members)
    return Networks(min(MEMBER_LATENTS * members, most), members, MEMBER_WIDTH)


def is_few(n_rows: int, shape: tuple[int, ...]) -> bool:
    """Whether rows are few for samples of this shape."""
    return n_rows <= (FEW_ROWS if len(shape) == 3 else 20 * FEW_ROWS)


def choose_inference(n_rows: int, shape: tuple[int, ...], rank: int, additive: bool) -> str:
    """The inference for so many rows and features.

    Args:
        additive: whether noise is; for other likelihoods global inference is faster and better with few rows too.
    """
    few = additive and is_few(n_rows, shape) and rank <= MOST_FEATURES
    name = "leave_out" if few else "global"
    tell("%s inference for %d samples and %d features", name, n_rows, rank)
    return name


def length_for(shape: tuple[int, ...], few: bool) -> float:
    """Share of the usual length of a fit: few large images are learned by heart sooner, and their steps cost more."""
    return min(1.0, max(USUAL_VALUES / math.prod(shape), LEAST_SHARE)) if few and len(shape) == 3 else 1.0


def choose_held_out(
    table: Table, ids: Sequence[str], share: float | None, seed: int, shape: tuple[int, ...]
) -> np.ndarray:
    """Positions of rows to hold out of training; none where too few would be left.

    Args:
        ids: columns whose every id keeps two rows at least.
        share: of the rows; None to choose it.  shape: of a sample.
    """
    n = len(table)
    if share == 0.0 or n < LEAST_ROWS:
        return np.zeros(0, dtype=np.int64)
    usual = max(HELD_OUT["image" if len(shape) == 3 else "vector"], min(ENOUGH_HELD_OUT / n, AT_MOST))
    wanted = share or min(max(usual, LEAST_HELD_OUT / n), MOST_HELD_OUT / n)
    try:
        return hold_out(table, wanted, ids, seed, least_left=2)[1]
    except ValueError:
        return np.zeros(0, dtype=np.int64)


def written_phases(
    inference: str, schedule: Schedule, epochs: int, unexplained: bool, held_out: bool, linear: bool
) -> list[Phase]:
    """The phases of a fit whose settings were chosen.

    With rows held out errors are measured first. Few rows are then all trained on, from the beginning: networks that
    have settled without a row hardly take it in. Networks that start at the exact linear model are trained as long as
    that helps at the rows held out, which may be not at all. With many rows the last part of the training sees all of
    them.

    Args:
        unexplained: whether some latents have no kernel.  held_out: whether rows are held out.
        linear: whether the networks start at the exact linear model, and how long they are trained is open.
    """
    rates = {"decoder": schedule.lr, "prior": schedule.prior_lr}
    if inference == "leave_out":
        rates |= {"encoder": schedule.lr, "noise": schedule.prior_lr}
    else:
        rates |= {"weights": schedule.prior_lr} | ({"encoder": schedule.lr / 4.0} if unexplained else {})
    phase = Phase(inference, inference, epochs, rates, "cosine", 0.03, schedule.weight_decay)
    phases = [phase]
    if held_out and inference == "leave_out":
        tried = replace(phase, name="tried", held_out=True)
        if not linear:
            tried = replace(tried, epochs=math.ceil(TRIED * epochs))
        phases = [tried, replace(phase, restart=True, until_best=linear)]
    elif held_out:
        after = round(PUT_BACK * epochs)
        lower = {name: PUT_BACK_RATE * rate for name, rate in rates.items()}
        phases = [replace(phase, epochs=epochs - after, held_out=True)]
        phases += [replace(phase, name="all rows", epochs=after, lr=lower)] if after else []
    if inference == "global":
        phases.append(Phase("encoder", "distill", max(1, epochs // 10), {"encoder": schedule.lr / 2.0}, "cosine"))
    return phases


def tell(message: str, *values: object) -> None:
    """One line of the log, by one process."""
    if first_process():
        log.info(message, *values)
