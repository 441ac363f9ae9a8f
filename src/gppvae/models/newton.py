"""Damped Gauss-Newton steps (Levenberg-Marquardt) for many small problems at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SHORTER, LONGER = 5.0, 5.0  # what the damping is multiplied or divided by
DAMPINGS = (1e-7, 1e7)
START = 1e-3
CONVERGED = 1e-4  # a step that promises less than that lowers no loss worth its cost
ROUNDING = 1e-6  # nor one that promises less than this share: losses of float32 networks have no more digits


@dataclass(frozen=True)
class Quadratic:
    """A loss around points, problem by problem: value (P,), gradient (P, J), positive definite curvature (P, J, J)."""

    loss: Tensor
    gradient: Tensor
    curvature: Tensor

    def where(self, chosen: Tensor, other: Quadratic) -> Quadratic:
        """These problems where `chosen` (P,) is True, those of the other elsewhere."""
        return Quadratic(
            torch.where(chosen, self.loss, other.loss),
            torch.where(chosen[:, None], self.gradient, other.gradient),
            torch.where(chosen[:, None, None], self.curvature, other.curvature),
        )


@torch.no_grad()
def levenberg_marquardt(expand: Callable[[Tensor], Quadratic], x: Tensor, steps: int) -> tuple[Tensor, Quadratic]:
    """Minimise from x (P, J). A problem whose step does not lower its true loss stays, and tries a shorter one.

    Args:
        expand: the losses around points.
    """
    at = expand(x)
    damping = torch.full((len(x), 1, 1), START, dtype=x.dtype, device=x.device)
    for _ in range(steps):
        scale = torch.diag_embed(at.curvature.diagonal(dim1=1, dim2=2))
        step = torch.linalg.solve(at.curvature + damping * scale, at.gradient.unsqueeze(2)).squeeze(2)
        promised = 0.5 * (step * at.gradient).sum(1)
        if not (promised > CONVERGED + ROUNDING * at.loss.abs()).any():
            break
        tried_x = x - step
        tried = expand(tried_x)
        better = tried.loss < at.loss  # False where it is NaN
        x = torch.where(better[:, None], tried_x, x)
        at = tried.where(better, at)
        damping = torch.where(better[:, None, None], damping / LONGER, damping * SHORTER).clamp(*DAMPINGS)
    return x, at
