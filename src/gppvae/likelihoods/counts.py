"""Counts: rates relative to the size of a sample, so that sequencing depth is not taken for biological variation."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.likelihoods.values import Likelihood, Mask, check_positive, masked_sum

DISPERSIONS = (1e-6, 1e6)
START_DISPERSIONS = (0.1, 100.0)
LOG_MEANS = (-30.0, 30.0)  # limits of log E[y], for exp() in float32
LARGE_DISPERSION = 1000.0  # above it, differences of log Gamma functions lose their digits in float32
RAREST = 1e-4  # rate of a value whose counts are all 0, relative to the mean rate
START_ZERO_LOGIT = -3.0
TOTAL = "total"


class Counts(Likelihood, abc.ABC):
    """Counts with mean size_n rate_g(z), with zero inflation if wanted.

        E y_ng = (1 - pi_g) size_n rate_ng,   pi_g the probability of an excess zero (0 without inflation)
        rate = softmax(log rate0 + decoder)     size is the sample's total: rates are shares of it
        rate = exp(log rate0 + decoder)         size is a column, or 1

    rate0 are the mean rates of the training samples, so a decoder output of 0 predicts these. The argument `out` of
    `nll`, `mean` and `variance` is log(size rate), from `sized`. Source: docs/likelihoods.md.

    Args:
        size: "total", the sample's total count; or the name of a column of the table; or None for no sizes.
        zero_inflation: learn pi_g.
    """

    error_name = "deviance"
    least_value = 0.0

    def __init__(self, size: str | None = TOTAL, zero_inflation: bool = False) -> None:
        super().__init__()
        if not (size is None or (isinstance(size, str) and size)):
            raise ValueError(
                f"size must be 'total', the name of a column or None, got {size!r}; 'total' is the default"
            )
        if not isinstance(zero_inflation, bool):
            raise ValueError(f"zero_inflation must be True or False, got {zero_inflation!r}; False is the default")
        self.size, self.zero_inflation = size, zero_inflation
        self.needs_totals = size == TOTAL
        self.size_column = None if size in (None, TOTAL) else size
        self.zero_logit = nn.Parameter(torch.tensor(START_ZERO_LOGIT)) if zero_inflation else None
        self.log_rate: Tensor
        self.typical: Tensor
        self.register_buffer("log_rate", torch.zeros(()))
        self.register_buffer("typical", torch.ones(()))

    # -- sizes and rates

    def adapt(self, shape: tuple[int, ...]) -> None:
        per_value = (shape[0], *(1 for _ in shape[1:]))  # (C, 1, 1) or (K,)
        self.log_rate = torch.zeros(per_value)
        if self.zero_logit is not None:
            self.zero_logit = nn.Parameter(torch.full(per_value, START_ZERO_LOGIT))

    def measure(self, mean: Tensor, std: Tensor) -> None:
        least = RAREST * mean.mean().clamp_min(RAREST)  # avoids log 0
        self.log_rate.copy_(mean.clamp_min(least).log().reshape(self.log_rate.shape))

    def measure_sizes(self, sizes: Tensor) -> None:
        self.typical.copy_(sizes.median())
        self.log_rate.sub_(sizes.mean().log())  # mean counts -> rates per unit of size

    def sizes(self, y: Tensor, mask: Mask, given: Tensor | None) -> Tensor | None:
        if not self.needs_totals:
            return None if self.size is None else given
        total = y.flatten(1).sum(1)  # missing values are 0, (B,)
        if mask is None:
            return total.clamp_min(1.0)
        rate = self.log_rate.exp().expand(y.shape[1:])
        share = (mask * rate / rate.sum()).flatten(1).sum(1)  # expected share of the observed values in the total, (B,)
        # Estimated total of the whole sample. A pseudo-count, smaller where little is missing, regularises it where few
        # values were observed; the size of a complete sample is its total, as without a mask.
        extra = 1.0 - share.clamp_max(1.0)
        return ((total + extra) / (share + extra / self.typical)).clamp_min(1.0)

    def sized(self, out: Tensor, size: Tensor | None) -> Tensor:
        log_rate = out + self.log_rate  # (B, *shape)
        if self.needs_totals:
            log_rate = log_rate.flatten(1).log_softmax(1).view_as(out)  # over all values of a sample
        size = self.typical.expand(1) if size is None else size.to(out)  # (B,) or (1,)
        return (log_rate + size.log().reshape(-1, *(1 for _ in out.shape[1:]))).clamp(*LOG_MEANS)

    def encoder_input(self, y: Tensor) -> Tensor:
        return self.masked_input(y, None)

    def masked_input(self, y: Tensor, mask: Mask) -> Tensor:
        """log(1 + count), scaled to the typical total if the total is the size."""
        if not self.needs_totals:
            return torch.log1p(y)
        size = self.sizes(y, mask, None)
        assert size is not None
        return torch.log1p(y * (self.typical / size).reshape(-1, *(1 for _ in y.shape[1:])))

    # -- the distribution

    @abc.abstractmethod
    def log_prob(self, y: Tensor, out: Tensor) -> Tensor:
        """Log probability of each count, without zero inflation, (B, *shape)."""

    @abc.abstractmethod
    def count_variance(self, mean: Tensor) -> Tensor:
        """Variance of each count, without zero inflation."""

    def nll(self, y: Tensor, out: Tensor, mask: Mask = None) -> Tensor:
        log_prob = self.log_prob(y, out)
        if self.zero_logit is not None:
            # p(0) = pi + (1 - pi) p_count(0),   p(y) = (1 - pi) p_count(y)
            counted = nn.functional.logsigmoid(-self.zero_logit) + log_prob
            zero = torch.logaddexp(nn.functional.logsigmoid(self.zero_logit).expand_as(counted), counted)
            log_prob = torch.where(y == 0.0, zero, counted)
        return -masked_sum(log_prob, mask)

    def _counted(self) -> Tensor | float:
        """1 - pi, the probability that a zero is a count."""
        return 1.0 if self.zero_logit is None else torch.sigmoid(-self.zero_logit)

    def mean(self, out: Tensor) -> Tensor:
        return self._counted() * out.exp()

    def variance(self, out: Tensor) -> Tensor:
        mean, counted = out.exp(), self._counted()  # law of total variance over the zero inflation
        return counted * self.count_variance(mean) + counted * (1.0 - counted) * mean.square()

    @torch.no_grad()
    def noisy(self, mean: Tensor, var: Tensor, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**62, (1,), generator=generator))  # of NumPy's generator, which has the distributions
        rng = np.random.default_rng(seed)
        counted = self._counted()
        drawn = self._draw((mean / counted).double().cpu().numpy(), rng)  # `mean` includes the excess zeros
        if isinstance(counted, Tensor):
            drawn = drawn * (rng.random(drawn.shape) < counted.detach().cpu().numpy())
        return torch.from_numpy(drawn).to(mean)

    @abc.abstractmethod
    def _draw(self, mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Random counts with these means, without zero inflation."""

    # -- errors

    def error(self, y: Tensor, mean: Tensor) -> Tensor:
        """Poisson deviance, 2 (y log(y / mean) - y + mean): errors relative to the noise of small and large counts."""
        mean = mean.clamp_min(1e-8)
        return 2.0 * (torch.xlogy(y, y / mean) - y + mean)

    def check(self, lowest: float, highest: float, integers: bool) -> None:
        if lowest < 0 or not integers:
            raise ValueError(
                f"the {self.name} likelihood needs counts 0, 1, 2 ..., got values in [{lowest:g}, {highest:g}]"
                f"{'' if integers else ' that are not whole'}; pass raw counts or use gaussian"
            )

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "zero_inflation": self.zero_inflation}


class Poisson(Counts):
    """Poisson counts.

        log p(y) = y log mean - mean - log y!,   Var y = mean

    Example:
        >>> import torch
        >>> from gppvae.likelihoods import Poisson
        >>> Poisson(size="depth").sized(torch.zeros(1, 2), torch.tensor([10.0])).exp().round().tolist()
        [[10.0, 10.0]]
    """

    name = "poisson"

    def log_prob(self, y: Tensor, out: Tensor) -> Tensor:
        return y * out - out.exp() - torch.lgamma(y + 1.0)

    def count_variance(self, mean: Tensor) -> Tensor:
        return mean

    def _draw(self, mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.poisson(mean).astype(np.float64)


class NegativeBinomial(Counts):
    """Overdispersed counts, with one learned dispersion r per value (gene, channel).

        p(y) = Gamma(y + r) / (Gamma(r) y!) (r / (r + mean))^r (mean / (r + mean))^y,   Var y = mean + mean^2 / r

    Args:
        dispersion: initial r of all values; by default from the moments of the training samples.
        size, zero_inflation: as in Counts.

    Example:
        >>> import torch
        >>> from gppvae.likelihoods import NegativeBinomial
        >>> counts = NegativeBinomial(dispersion=2.0)
        >>> counts.mean(torch.zeros(1, 1)).item(), round(counts.variance(torch.zeros(1, 1)).item(), 3)
        (1.0, 1.5)
    """

    name = "negative_binomial"

    def __init__(self, dispersion: float | None = None, size: str | None = TOTAL, zero_inflation: bool = False) -> None:
        super().__init__(size, zero_inflation)
        if dispersion is not None:
            check_positive("dispersion", dispersion, DISPERSIONS, "1.0")
        self.start = dispersion
        self.log_dispersion = nn.Parameter(torch.tensor(float(dispersion or 1.0)).log())

    def adapt(self, shape: tuple[int, ...]) -> None:
        super().adapt(shape)
        start = float(self.log_dispersion.detach())
        self.log_dispersion = nn.Parameter(torch.full(self.log_rate.shape, start))

    @torch.no_grad()
    def measure(self, mean: Tensor, std: Tensor) -> None:
        super().measure(mean, std)
        if self.start is None:  # var = mean + mean^2 / dispersion
            excess = (std.square() - mean).clamp_min(1e-12)  # mean^2 / r
            found = (mean.square() / excess).clamp(*START_DISPERSIONS)
            self.log_dispersion.copy_(found.log().reshape(self.log_dispersion.shape))

    def log_prob(self, y: Tensor, out: Tensor) -> Tensor:
        r = self.log_dispersion.exp()
        log_total = torch.logaddexp(self.log_dispersion, out)  # log(r + mean)
        combinations = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1.0)
        plain = combinations + r * (self.log_dispersion - log_total) + y * (out - log_total)
        large = r > LARGE_DISPERSION
        return torch.where(large, self._nearly_poisson(y, out), plain) if large.any() else plain

    def _nearly_poisson(self, y: Tensor, out: Tensor) -> Tensor:
        """`log_prob` for large r, without differences of numbers as large as r log r.

        With log Gamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + 1 / 12x, for x = y + r and x = r.
        """
        log_r = self.log_dispersion.clamp_min(math.log(LARGE_DISPERSION))  # finite gradients where it is not used
        r = log_r.exp()
        gammas = (y + r - 0.5) * (y / r).log1p() - y - y / (12.0 * r * (y + r))  # log Gamma(y + r) / (Gamma(r) r^y)
        log_share = -nn.functional.softplus(out - log_r)  # log(r / (r + mean))
        return gammas - torch.lgamma(y + 1.0) + r * log_share + y * (out + log_share)

    def count_variance(self, mean: Tensor) -> Tensor:
        return mean + mean.square() / self.log_dispersion.exp()

    def _draw(self, mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        r = np.broadcast_to(self.log_dispersion.detach().double().exp().cpu().numpy(), mean.shape)
        return rng.poisson(rng.gamma(r, mean / r)).astype(np.float64)  # a gamma mixture of Poissons

    def config(self) -> dict[str, Any]:
        return super().config() | {"dispersion": self.start}


COUNTS: dict[str, type[Likelihood]] = {cls.name: cls for cls in (NegativeBinomial, Poisson)}


def counts_by_words(kind: str | None, size: str) -> Likelihood:
    """The likelihood as the command line describes it: its name, and the column of sizes.

    Example:
        >>> from gppvae.likelihoods import counts_by_words
        >>> counts_by_words("poisson", "depth").size_column
        'depth'
    """
    if kind not in COUNTS:
        raise ValueError(f"sizes belong to the likelihoods {', '.join(COUNTS)}, got {kind}; use one of these")
    return COUNTS[kind](size=size)
