"""What the kernel of a fitted model says: covariances between objects and between views, and how much they explain."""

from __future__ import annotations

import numpy as np
import torch

from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.kernels import FreeForm, Learned
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.paper.comparison.task import Task


@torch.no_grad()
def learned_arrays(model: GPPVAE, task: Task) -> dict[str, np.ndarray]:
    """Encoder outputs on the training images, and the covariances between objects and between views."""
    mean, std = model.encode(task.train.images, return_std=True)
    found: dict[str, np.ndarray] = {"z_mean": np.asarray(mean), "z_logvar": 2.0 * np.log(np.asarray(std))}
    for leaf in model.prior_.leaves():
        if isinstance(leaf, Learned):
            values = torch.arange(len(leaf.levels))
            found["object_covariance"] = leaf.covariance(values, values).numpy()
        elif isinstance(leaf, FreeForm):
            order = torch.tensor([leaf.levels.index(view) for view in task.views])
            found["view_covariance"] = leaf.covariance(order, order).numpy()
        elif isinstance(leaf, StationaryLeaf):
            angles = torch.tensor(list(task.views.values()), dtype=torch.float64)[:, None]
            found["view_covariance"] = leaf.covariance(angles, angles).numpy()
    return found


@torch.no_grad()
def learned_facts(model: GPPVAE, task: Task) -> dict[str, float]:
    """Share of the latent variance that object x view explains, k / (k + alpha), and its two parts.

    k is the kernel's diagonal averaged over the training rows: what both covariances amount to when each is scaled
    to an average variance of one. With an ensemble it is the mean over the members' latents.
    """
    signal = noise = 0.0
    for group in model.prior_.groups:
        assert group.kernel is not None
        share = group.n_latents / model.prior_.n_latents
        signal += share * float(group.kernel.diag(group.kernel.code(Table(task.train.table))).mean())
        noise += share * float(group.alpha)
    return {"signal_variance": signal, "noise_variance": noise, "share_explained": signal / (signal + noise)}


def normalised(covariance: np.ndarray) -> np.ndarray:
    """The covariance scaled to an average variance of one."""
    scale = float(np.diag(covariance).mean())
    return covariance / scale if scale > 0 else covariance
