"""The weight of observed values against the GP's prediction of the latents, chosen by hiding some observed values.

The errors of a decoder are correlated between values, so observed values carry less information about the latents than
as many independent ones. The GP's variances may also be too small or too large. The weight w corrects for both:

    w <= 1:  p(y_o | z)^w N(z; m, S)          w = 0 is the GP's prediction
    w > 1:   p(y_o | z)   N(z; m, w S)        w -> infinity ignores the GP's prediction

The chosen w predicts hidden values best, with the decoder linearised at the GP's prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.linalg import steady_cholesky

WEIGHTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)
LEAST_HIDDEN = 30  # hidden values; with fewer, no weight is chosen
LEAST_SHARE = 0.05  # hidden share of the observed values, for the masks of other samples to be of use
SPREADS = (0.5, 4.0)  # limits of `Trust.spread`


@dataclass(frozen=True)
class Trust:
    """Weight w of observed values, and the factor by which standard deviations of missing values are too small."""

    weight: float = 1.0
    spread: float = 1.0

    def to_json(self) -> dict[str, float]:
        return {"weight": self.weight, "spread": self.spread}

    @classmethod
    def from_json(cls, saved: dict[str, float]) -> Trust:
        if saved["weight"] not in WEIGHTS or not SPREADS[0] <= saved["spread"] <= SPREADS[1]:
            raise ValueError(f"the trust in observed values is {saved!r:.80}")
        return cls(float(saved["weight"]), float(saved["spread"]))


@dataclass(frozen=True)
class HiddenValues:
    """Rows with some observed values hidden, and the decoder linearised at the GP's prediction; in units of the noise.

    Attributes:
        row: numbers of the rows, (B,).
        var: S of the latents, (B, L).  curvature: J_o'J_o, (B, L, L), and pull: J_o'r_o, (B, L), of visible values o.
        jacobian: J' of the values that count in the score, (B, L, C).  residual: of these values, (B, C).
        hidden: mask of the hidden ones among them, (B, C).
    """

    row: Tensor
    var: Tensor
    curvature: Tensor
    pull: Tensor
    jacobian: Tensor
    residual: Tensor
    hidden: Tensor


def hide_as_elsewhere(mask: Tensor, shift: int = 1) -> Tensor | None:
    """Hide the values that are missing in another sample, `shift` samples away, (B, *shape) bool; None if too few.

    If the same values are missing in all samples, nothing is hidden, and their errors cannot be measured in this way.
    """
    hidden = mask & ~mask.roll(shift, dims=0)
    return hidden if hidden.sum() >= LEAST_SHARE * mask.sum() else None


def hide_sides(mask: Tensor, generator: torch.Generator) -> Tensor:
    """Hide one side of each sample, (B, *shape) bool: values beyond a random line across an image, any of a vector.

    A quarter to three quarters of the observed values stay visible. Hidden pixels are contiguous, which is harder to
    predict than scattered ones.
    """
    shape = mask.shape[1:]
    if len(shape) == 1:
        order = torch.rand(mask.shape, generator=generator)
    else:
        rows, columns = torch.meshgrid(*(torch.linspace(-1.0, 1.0, n) for n in shape[1:]), indexing="ij")
        turn = 2.0 * torch.pi * torch.rand(len(mask), 1, 1, 1, generator=generator)
        order = (turn.cos() * rows + turn.sin() * columns).expand(mask.shape)  # (B, C, height, width)
    order = order.flatten(1)
    rank = torch.where(mask.flatten(1).cpu(), order, torch.inf).argsort(1).argsort(1)  # observed values first, (B, K)
    # Number of visible values, (B, 1).
    visible = (0.25 + 0.5 * torch.rand(len(mask), 1, generator=generator)) * mask.flatten(1).sum(1, keepdim=True).cpu()
    return mask & (rank >= visible).view(mask.shape).to(mask.device)


def choose_trust(parts: list[HiddenValues]) -> Trust | None:
    """The weight of the least squared error at hidden values, and the calibration of its standard deviations there.

    One-standard-error rule: of the weights whose error is within one standard error (over rows) of the least, the
    smallest is chosen, which is closest to the GP's prediction. None if too few values are hidden.

    Raises:
        ValueError: if a squared error is not finite.
    """
    if sum(int(part.hidden.sum()) for part in parts) < LEAST_HIDDEN:
        return None
    n_rows = 1 + max(int(part.row.max()) for part in parts)
    errors, variances = torch.zeros(2, n_rows, len(WEIGHTS), dtype=torch.float64)  # (rows, weights) each
    for part in parts:
        for number, weight in enumerate(WEIGHTS):
            precision = torch.diag_embed(1.0 / (part.var * max(weight, 1.0))) + min(weight, 1.0) * part.curvature
            root = steady_cholesky(precision)  # (B, L, L)
            step = torch.cholesky_solve(min(weight, 1.0) * part.pull.unsqueeze(2), root)  # E z - m, (B, L, 1)
            error = part.residual - (part.jacobian.transpose(1, 2) @ step).squeeze(2)
            spread = torch.linalg.solve_triangular(root, part.jacobian, upper=False).square().sum(1)  # (B, C)
            errors[part.row, number] += (error.square() * part.hidden).sum(1).cpu()
            variances[part.row, number] += ((spread + 1.0) * part.hidden).sum(1).cpu()
    if not errors.isfinite().all():
        raise ValueError(
            "expected samples near the model's predictions, got errors beyond what float32 can square; give samples in "
            "the unit of training, and fit into a new folder if a checkpoint was continued"
        )
    worse = errors - errors[:, errors.sum(0).argmin(), None]  # excess over the best weight, (rows, weights)
    within = worse.mean(0) <= worse.std(0) / n_rows**0.5 if n_rows > 1 else worse.mean(0) <= 0.0
    chosen = int(torch.nonzero(within)[0])
    factor = float((errors[:, chosen].sum() / variances[:, chosen].sum()).sqrt())  # actual over predicted spread
    return Trust(WEIGHTS[chosen], min(max(factor, SPREADS[0]), SPREADS[1]))
