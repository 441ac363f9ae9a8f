"""The posterior of the latents at rows: leave-one-out predictions, and the GP term row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Latents:
    """Posterior of the latents at rows: f ~ N(mean, var), z = f + eta, eta ~ N(0, noise); (N, L) each."""

    mean: Tensor
    var: Tensor
    noise: Tensor

    def leave_one_out(self, z: Tensor) -> Latents:
        """Each row's latents given all rows but itself, when q(B) was conditioned on all rows, these at `z`.

        With the leverage h = v'Sigma v / d:
            mean = f - h / (1 - h) (z - f),   var = v'Sigma v / (1 - h)
        so that var + noise = d / (1 - h). Source: docs/math.md, "Leave-out training".

        Args:
            z: (N, L), the values that q(B) was conditioned on.
        """
        leverage = self.var / self.noise  # h, (N, L)
        mean = self.mean - leverage / (1.0 - leverage) * (z - self.mean)
        return Latents(mean, self.var / (1.0 - leverage), self.noise)

    def expected_nll(self, mean: Tensor, var: Tensor) -> Tensor:
        """-E log N(z; f, noise) per row for z ~ N(mean, var), (N,).

            1/2 sum_l [log 2 pi d + ((mu - f)^2 + s2 + v'Sigma v) / d]
        Summed over all rows, plus KL(q(B)), it is never below the exact GP term, and equals it for given latents at
        the posterior q(B). Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

        Args:
            mean, var: of q(z | y), (N, L) each.
        """
        quad = (mean - self.mean).square() + var + self.var  # E (z - f)^2, (N, L)
        return 0.5 * (quad / self.noise + self.noise.log() + math.log(2.0 * math.pi)).sum(1)
