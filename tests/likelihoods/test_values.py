"""Likelihoods, against SciPy's distributions; values that were not observed must not matter."""

import numpy as np
import pytest
import torch
from scipy import stats

from gppvae.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, make_likelihood

LIKELIHOODS = {
    "gaussian": lambda: Gaussian(0.3),
    "bernoulli": Bernoulli,
    "negative_binomial": lambda: NegativeBinomial(2.5),
    "poisson": Poisson,
}
every_likelihood = pytest.mark.parametrize("name", LIKELIHOODS)


def samples(name: str, shape: tuple[int, ...] = (4, 2, 3)) -> tuple[np.ndarray, np.ndarray]:
    """y and decoder output."""
    rng = np.random.default_rng(0)
    out = rng.normal(size=shape)
    y = {
        "gaussian": rng.normal(size=shape),
        "bernoulli": rng.integers(0, 2, shape),
        "negative_binomial": rng.poisson(3, shape),
        "poisson": rng.poisson(3, shape),
    }
    return y[name].astype(float), out


def distribution(name: str, out: np.ndarray):
    """The distribution of y in SciPy's own parameters, the numbers of `LIKELIHOODS`."""
    if name == "gaussian":
        return stats.norm(out, np.sqrt(0.3))
    if name == "bernoulli":
        return stats.bernoulli(1 / (1 + np.exp(-out)))
    return stats.poisson(np.exp(out)) if name == "poisson" else stats.nbinom(2.5, 2.5 / (2.5 + np.exp(out)))


def log_density(name: str, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    frozen = distribution(name, out)
    return frozen.logpdf(y) if name == "gaussian" else frozen.logpmf(y)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


@every_likelihood
def test_nll_per_sample_is_minus_the_log_density(name: str) -> None:
    y, out = samples(name)
    nll = LIKELIHOODS[name]().double().nll(*tensors(y, out))
    assert nll.shape == (4,)
    np.testing.assert_allclose(nll.detach().numpy(), -log_density(name, y, out).sum((1, 2)), rtol=1e-6)


@every_likelihood
def test_mean_and_variance_are_those_of_the_distribution(name: str) -> None:
    _, out = samples(name)
    likelihood = LIKELIHOODS[name]().double()
    mean, variance = likelihood.mean(torch.from_numpy(out)), likelihood.variance(torch.from_numpy(out))
    np.testing.assert_allclose(mean.detach().numpy(), distribution(name, out).mean(), rtol=1e-6)
    np.testing.assert_allclose(variance.detach().numpy(), distribution(name, out).var(), rtol=1e-6)


@every_likelihood
def test_only_observed_values_count(name: str) -> None:
    y, out = samples(name)
    mask = np.random.default_rng(1).random(y.shape) < 0.5
    mask[0] = False
    likelihood = LIKELIHOODS[name]().double()
    t_out = torch.from_numpy(out).requires_grad_()
    nll = likelihood.nll(torch.from_numpy(y), t_out, torch.from_numpy(mask))
    want = -(log_density(name, y, out) * mask).sum((1, 2))
    np.testing.assert_allclose(nll.detach().numpy(), want, rtol=1e-6)
    assert nll[0].item() == 0.0
    nll.sum().backward()
    assert not t_out.grad[~torch.from_numpy(mask)].any()
    other = np.where(mask, y, 1.0)
    np.testing.assert_array_equal(
        likelihood.nll(torch.from_numpy(other), t_out, torch.from_numpy(mask)).detach(), nll.detach()
    )


@every_likelihood
def test_a_full_mask_is_no_mask(name: str) -> None:
    y, out = tensors(*samples(name))
    likelihood = LIKELIHOODS[name]().double()
    torch.testing.assert_close(likelihood.nll(y, out, torch.ones_like(y, dtype=torch.bool)), likelihood.nll(y, out))


@every_likelihood
def test_gradients_by_differences(name: str) -> None:
    y, out = tensors(*samples(name, (2, 3)))
    likelihood = LIKELIHOODS[name]().double()
    assert torch.autograd.gradcheck(lambda o: likelihood.nll(y, o), [out.requires_grad_()])


@every_likelihood
def test_config_builds_it_again(name: str) -> None:
    likelihood = LIKELIHOODS[name]()
    again = make_likelihood(likelihood.config())
    assert type(again) is type(likelihood) and again.config() == pytest.approx(likelihood.config())
    assert make_likelihood(likelihood) is likelihood and type(make_likelihood(name)) is type(likelihood)


@pytest.mark.parametrize("extreme", [-60.0, 60.0])
@every_likelihood
def test_extreme_outputs_stay_finite(name: str, extreme: float) -> None:
    likelihood = LIKELIHOODS[name]()
    out = torch.full((1, 2), extreme, requires_grad=True)
    nll = likelihood.nll(torch.tensor([[0.0, 1.0]]), out).sum()
    nll.backward()
    assert torch.isfinite(nll) and torch.isfinite(out.grad).all()


def test_pixel_variance_is_learned_only_when_asked() -> None:
    assert not Gaussian(0.5).log_pixel_var.requires_grad and Gaussian(0.5, learn=True).log_pixel_var.requires_grad
    likelihood = Gaussian(1.0, learn=True).double()
    y, out = tensors(*samples("gaussian"))
    likelihood.nll(y, out).sum().backward()
    want = 0.5 * (y.numel() - (y - out).square().sum())  # d/d log v of sum 1/2 (log v + r^2 / v) at v = 1
    torch.testing.assert_close(likelihood.log_pixel_var.grad, want)


@pytest.mark.parametrize(
    ("likelihood", "data", "message"),
    [
        (Bernoulli(), (-0.1, 1.0, False), r"values in \[0, 1\], got \[-0\.1, 1\]"),
        (Bernoulli(), (0.0, 255.0, True), r"got \[0, 255\]; rescale or use gaussian"),
        (NegativeBinomial(), (-1.0, 3.0, True), r"needs counts .* got values in \[-1, 3\]"),
        (NegativeBinomial(), (0.0, 3.0, False), "that are not whole; pass raw counts"),
    ],
)
def test_data_that_cannot_come_from_it_is_refused(
    likelihood: Likelihood, data: tuple[float, float, bool], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.check(*data)


def test_data_that_can_is_accepted() -> None:
    for likelihood, data in (
        (Gaussian(), (-9.0, 9.0, False)),
        (Bernoulli(), (0.0, 1.0, False)),
        (NegativeBinomial(), (0.0, 900.0, True)),
    ):
        assert likelihood.check(*data) is None


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_parameters_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="pixel_var must be a number from"):
        Gaussian(value)
    with pytest.raises(ValueError, match="dispersion must be a number from"):
        NegativeBinomial(value)


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match="one of gaussian, bernoulli, negative_binomial, poisson, scaled_gaussian, perceptual, got 'gamma'",
    ):
        make_likelihood("gamma")


@every_likelihood
def test_no_mean_is_below_the_least_value(name: str) -> None:
    """And 0 is the least of all but Gaussian samples: far below, the mean comes close to it."""
    likelihood, out = LIKELIHOODS[name](), torch.linspace(-20.0, 5.0, 50).reshape(1, 50)
    lowest = likelihood.mean(out).min().item()
    assert lowest >= likelihood.least_value
    assert (lowest == pytest.approx(0.0, abs=1e-6)) == (likelihood.least_value == 0.0)


@every_likelihood
def test_no_mean_is_above_the_most_value(name: str) -> None:
    """And only probabilities have one, 1."""
    likelihood, out = LIKELIHOODS[name](), torch.linspace(-5.0, 20.0, 50).reshape(1, 50)
    highest = likelihood.mean(out).max().item()
    assert highest <= likelihood.most_value
    assert (highest == pytest.approx(1.0, abs=1e-6)) == (likelihood.most_value == 1.0)
