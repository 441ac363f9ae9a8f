"""The interface of likelihoods, and two whose values are independent given the decoder's output."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

Mask = Tensor | None
PIXEL_VARS = (1e-12, 1e12)  # limits for the division in float32


class Likelihood(nn.Module, abc.ABC):
    """p(y | out), out = decoder(z), with nll = -log p. `mask` is True where a value was observed; None for everywhere.

    Attributes:
        name: in logs and model files; by default the name of the class.
        numbers_per_value: k, the decoder's outputs per value of a sample. For k = 1, `out` is (B, *shape), the shape of
            the samples; otherwise (B, k, *shape).
        additive_noise: whether a sample is its mean plus noise that does not depend on it. The width of intervals is
            then measured at held-out rows, and few samples are fitted by leave-out inference.
        learns_noise: whether `learn_noise` needs the errors at rows held out of training.
        error_name: name of `error` in logs.
        least_value, most_value: smallest and largest possible value of a sample; intervals and bands end there.
        size_column: the column of the table with the sizes of samples, if it needs one.
        needs_totals: whether the size of a sample is its total.

    Example:
        >>> import torch
        >>> from gppvae import Likelihood
        >>> class Poisson(Likelihood):
        ...     def nll(self, y, out, mask=None):
        ...         return (out.exp() - y * out + torch.lgamma(y + 1)).flatten(1).sum(1)
        ...     def mean(self, out):
        ...         return out.exp()
        ...     def variance(self, out):
        ...         return out.exp()
        >>> round(Poisson().nll(torch.tensor([[2.0]]), torch.tensor([[0.0]])).item(), 3)
        1.693
    """

    name: str
    numbers_per_value: int = 1
    additive_noise: bool = False
    learns_noise: bool = False
    error_name: str = "mse"
    least_value: float = -math.inf
    most_value: float = math.inf
    size_column: str | None = None
    needs_totals: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abc.abstractmethod
    def nll(self, y: Tensor, out: Tensor, mask: Mask = None) -> Tensor:
        """-log p(y | out) per sample, (B,), summed over observed values."""

    @abc.abstractmethod
    def mean(self, out: Tensor) -> Tensor:
        """E[y | out], (B, *shape)."""

    @abc.abstractmethod
    def variance(self, out: Tensor) -> Tensor:
        """Var[y | out], broadcastable to the samples."""

    def encoder_input(self, y: Tensor) -> Tensor:
        """The encoder's input for a sample, (B, *shape); missing values are set to 0 afterwards."""
        return y

    def masked_input(self, y: Tensor, mask: Mask) -> Tensor:
        """`encoder_input` for partly observed samples; missing values are 0 in `y`."""
        return self.encoder_input(y)

    def sizes(self, y: Tensor, mask: Mask, given: Tensor | None) -> Tensor | None:
        """Sizes of samples, (B,), from their values or from the rows (`given`); None for likelihoods without sizes."""
        return None

    def sized(self, out: Tensor, size: Tensor | None) -> Tensor:
        """The decoder's output for samples of these sizes, (B,), or of typical size: the `out` of all other methods."""
        return out

    def measure_sizes(self, sizes: Tensor) -> None:
        """Set parameters from the sizes of the training samples, (N,)."""
        return None

    def noisy(self, mean: Tensor, var: Tensor, generator: torch.Generator) -> Tensor:
        """One draw of samples with these means and variances."""
        return mean + torch.randn(mean.shape, generator=generator).to(mean) * var.sqrt()

    def error(self, y: Tensor, mean: Tensor) -> Tensor:
        """Error of each value of a prediction, for validation and reports: by default squared."""
        return (y - mean).square()

    @property
    def unit(self) -> Tensor:
        """Unit of each value, broadcastable to the samples: errors of channels are compared after division by it."""
        return torch.ones(())

    def adapt(self, shape: tuple[int, ...]) -> None:
        """Create parameters that depend on the shape of a sample; called once, before training or loading."""
        return None

    def measure(self, mean: Tensor, std: Tensor) -> None:
        """Set parameters from the mean and standard deviation of the training samples, per channel or value."""
        return None

    def learn_noise(self, squared_error: Tensor) -> None:
        """Set the noise from the mean squared error of predictions at held-out rows, per channel or value."""
        return None

    @property
    def values(self) -> Likelihood:
        """The distribution of the values, without terms that are used in training only."""
        return self

    def ready(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError when training on samples of `shape` cannot start."""
        return None

    def check(self, lowest: float, highest: float, integers: bool) -> None:
        """Raise ValueError when data in [lowest, highest] cannot come from this distribution."""
        return None

    def config(self) -> dict[str, Any]:
        """Arguments that rebuild this likelihood, as JSON values."""
        return {"name": self.name}


class Gaussian(Likelihood):
    """Gaussian noise of one variance.

        y ~ N(out, sigma_y^2 I)

    Args:
        pixel_var: sigma_y^2. It sets the trade-off between reconstruction and prior: the paper's lambda is
            2 L pixel_var / K.
        learn: train it with the decoder (the paper chooses it on validation data).

    Example:
        >>> import torch
        >>> from gppvae.likelihoods import Gaussian
        >>> noise = Gaussian(pixel_var=0.04)
        >>> round(noise.variance(torch.zeros(1, 1)).item(), 3)
        0.04
    """

    name = "gaussian"
    additive_noise = True

    def __init__(self, pixel_var: float = 0.01, learn: bool = False) -> None:
        super().__init__()
        check_positive("pixel_var", pixel_var, PIXEL_VARS, "0.01")
        self.log_pixel_var = nn.Parameter(torch.tensor(math.log(pixel_var)), requires_grad=learn)
        self.learn = learn

    @property
    def pixel_var(self) -> Tensor:
        return self.log_pixel_var.exp()

    def nll(self, y: Tensor, out: Tensor, mask: Mask = None) -> Tensor:
        if mask is None:
            squares, count = (y - out).square().flatten(1).sum(1), float(math.prod(y.shape[1:]))  # (B,), K
            return 0.5 * (squares / self.pixel_var + count * (self.log_pixel_var + math.log(2.0 * math.pi)))
        terms = (y - out).square() / self.pixel_var + self.log_pixel_var + math.log(2.0 * math.pi)  # (B, *shape)
        return 0.5 * masked_sum(terms, mask)

    def mean(self, out: Tensor) -> Tensor:
        return out

    def variance(self, out: Tensor) -> Tensor:
        return self.pixel_var.expand_as(out)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "pixel_var": float(self.pixel_var.detach()), "learn": self.learn}


class Bernoulli(Likelihood):
    """Values in [0, 1], with the decoder's output as logits.

        log p(y) = y log p + (1 - y) log(1 - p),   p = sigmoid(out)

    Example:
        >>> import torch
        >>> from gppvae.likelihoods import Bernoulli
        >>> Bernoulli().mean(torch.tensor([[0.0]])).item()
        0.5
    """

    name = "bernoulli"
    least_value, most_value = 0.0, 1.0

    def nll(self, y: Tensor, out: Tensor, mask: Mask = None) -> Tensor:
        terms = nn.functional.binary_cross_entropy_with_logits(out, y, reduction="none")  # (B, *shape)
        return masked_sum(terms, mask)

    def mean(self, out: Tensor) -> Tensor:
        return out.sigmoid()

    def variance(self, out: Tensor) -> Tensor:
        p = out.sigmoid()
        return p * (1.0 - p)

    def check(self, lowest: float, highest: float, integers: bool) -> None:
        if lowest < 0.0 or highest > 1.0:
            raise ValueError(
                f"the bernoulli likelihood needs values in [0, 1], got [{lowest:g}, {highest:g}]; "
                "rescale or use gaussian"
            )


VALUES: dict[str, type[Likelihood]] = {cls.name: cls for cls in (Gaussian, Bernoulli)}


def make(config: str | dict[str, Any] | Likelihood, kinds: Mapping[str, type[Likelihood]] = VALUES) -> Likelihood:
    """One of these kinds of likelihood from its name, from `config()` of another, or as given."""
    if isinstance(config, Likelihood):
        return config
    if not isinstance(config, (str, Mapping)):
        raise TypeError(f"likelihood must be a name or a Likelihood, got {config!r}; gaussian is the default")
    options = {"name": config} if isinstance(config, str) else dict(config)
    name = str(options.pop("name", None))
    if name not in kinds:
        raise ValueError(f"likelihood must be one of {', '.join(kinds)}, got {name!r}; gaussian is the default")
    try:
        return kinds[name](**options)
    except TypeError as error:  # wrong arguments
        raise TypeError(f"the {name} likelihood was given {list(options) or 'no arguments'}: {error}") from None


def check_positive(name: str, value: Any, limits: tuple[float, float], example: str) -> None:
    """Raise ValueError unless `value` is a number within the limits."""
    low, high = limits
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}; use for example {example}")


def masked_sum(terms: Tensor, mask: Mask) -> Tensor:
    """Sum over the observed values of each sample, (B, *shape) -> (B,)."""
    if mask is not None:
        terms = torch.where(mask, terms, torch.zeros_like(terms))
    return terms.flatten(1).sum(1)
