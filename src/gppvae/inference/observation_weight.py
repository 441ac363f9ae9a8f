"""The weight of observed values when latents are inferred from them, chosen on values that are hidden for the purpose.

Errors of a decoder are correlated between values, so that many observed values carry less information about the latents
than as many independent ones would. The GP's variances may also be too small or too large. One number corrects for
both, the weight w of the observed values against the GP's prediction:

    w <= 1:  p(y_o | z)^w N(z; m, S)          w = 0 is the prediction itself
    w > 1:   p(y_o | z)   N(z; m, w S)        large w ignores the prediction

The w that predicts hidden values best is chosen, with the decoder linearised at the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.linalg import steady_cholesky

WEIGHTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)
LEAST_HIDDEN = 30  # values, below which nothing is measured
LEAST_SHARE = 0.05  # of the observed values, hidden by the masks of other samples
SPREADS = (0.5, 4.0)


@dataclass(frozen=True)
class Trust:
    """Weight of observed values, and the factor by which standard deviations of what is missing are too small."""

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
        var: S of the latents, (B, L).  curvature: J_o J_o', (B, L, L).  pull: J_o r_o, (B, L), of values left visible.
        slopes: J of some values, (B, L, C).  residual: their distance from the prediction, (B, C).
        hidden: which of them were hidden, (B, C) bool.
    """

    row: Tensor
    var: Tensor
    curvature: Tensor
    pull: Tensor
    slopes: Tensor
    residual: Tensor
    hidden: Tensor


def hide_as_elsewhere(mask: Tensor, shift: int = 1) -> Tensor | None:
    """Observed values that are missing in another sample, `shift` samples away, (B, *shape) bool; None if too few.

    If all samples miss the same values, no observed value shows how well these can be predicted.
    """
    hidden = mask & ~mask.roll(shift, dims=0)
    return hidden if hidden.sum() >= LEAST_SHARE * mask.sum() else None


def hide_sides(mask: Tensor, generator: torch.Generator) -> Tensor:
    """One side of each sample, (B, *shape) bool: values beyond a line across an image, any values of a vector.

    A quarter to three quarters of the observed values. Hidden pixels are contiguous, which makes the task at least as
    hard as most.
    """
    shape = mask.shape[1:]
    if len(shape) == 1:
        order = torch.rand(mask.shape, generator=generator)
    else:
        rows, columns = torch.meshgrid(*(torch.linspace(-1.0, 1.0, n) for n in shape[1:]), indexing="ij")
        turn = 2.0 * torch.pi * torch.rand(len(mask), 1, 1, 1, generator=generator)
        order = (turn.cos() * rows + turn.sin() * columns).expand(mask.shape)  # (B, C, height, width)
    order = order.flatten(1)
    rank = torch.where(mask.flatten(1).cpu(), order, torch.inf).argsort(1).argsort(1)
    visible = (0.25 + 0.5 * torch.rand(len(mask), 1, generator=generator)) * mask.flatten(1).sum(1, keepdim=True).cpu()
    return mask & (rank >= visible).view(mask.shape).to(mask.device)


def choose_trust(parts: list[HiddenValues]) -> Trust | None:
    """The weight with the least squared error at hidden values, and how far its standard deviations are off there.

    Of all weights within one standard error (over rows) of the best, the smallest is chosen, which stays nearest to the
    prediction. None where too few values are hidden.

    Raises:
        ValueError: if squared errors are not finite, for which no weight is the best.
    """
    if sum(int(part.hidden.sum()) for part in parts) < LEAST_HIDDEN:
        return None
    n_rows = 1 + max(int(part.row.max()) for part in parts)
    errors, variances = torch.zeros(2, n_rows, len(WEIGHTS), dtype=torch.float64)
    for part in parts:
        for number, weight in enumerate(WEIGHTS):
            precision = torch.diag_embed(1.0 / (part.var * max(weight, 1.0))) + min(weight, 1.0) * part.curvature
            root = steady_cholesky(precision)
            step = torch.cholesky_solve(min(weight, 1.0) * part.pull.unsqueeze(2), root)  # (B, L, 1)
            error = part.residual - (part.slopes.transpose(1, 2) @ step).squeeze(2)
            spread = torch.linalg.solve_triangular(root, part.slopes, upper=False).square().sum(1)  # (B, C)
            errors[part.row, number] += (error.square() * part.hidden).sum(1).cpu()
            variances[part.row, number] += ((spread + 1.0) * part.hidden).sum(1).cpu()
    if not errors.isfinite().all():
        raise ValueError(
            "expected samples near the model's predictions, got errors beyond what float32 can square; give samples in "
            "the unit of training, and fit into a new folder if a checkpoint was continued"
        )
    worse = errors - errors[:, errors.sum(0).argmin(), None]  # (rows, weights)
    within = worse.mean(0) <= worse.std(0) / n_rows**0.5 if n_rows > 1 else worse.mean(0) <= 0.0
    chosen = int(torch.nonzero(within)[0])
    factor = float((errors[:, chosen].sum() / variances[:, chosen].sum()).sqrt())
    return Trust(WEIGHTS[chosen], min(max(factor, SPREADS[0]), SPREADS[1]))
