"""Likelihoods of counts: densities, sizes, starting rates and deviance, against SciPy and loops."""

import numpy as np
import pytest
import torch
from scipy import stats

from gppvae.likelihoods import NegativeBinomial, Poisson, counts_by_words
from gppvae.likelihoods.counts import Counts

K = 5


def counts(n: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(2.0, 3.0, size=(n, K)))


def ready(likelihood: Counts, y: np.ndarray, sizes: np.ndarray | None = None) -> Counts:
    """The likelihood as a fit prepares it, in float64."""
    likelihood.adapt((y.shape[1],))
    likelihood.double()
    likelihood.measure(torch.from_numpy(y.mean(0)), torch.from_numpy(y.std(0)))
    if sizes is not None:
        likelihood.measure_sizes(torch.from_numpy(sizes))
    return likelihood


def probability(kind: type[Counts], y: int, mean: float, dispersion: float, zero: float) -> float:
    """Of one count, with a share `zero` of extra zeros."""
    if kind is Poisson:
        plain = stats.poisson.pmf(y, mean)
    else:
        plain = stats.nbinom.pmf(y, dispersion, dispersion / (dispersion + mean))
    return (1.0 - zero) * plain + (zero if y == 0 else 0.0)


@pytest.mark.parametrize("inflated", [False, True])
@pytest.mark.parametrize("kind", [Poisson, NegativeBinomial])
def test_densities_and_moments_with_a_dispersion_per_value(kind: type[Counts], inflated: bool) -> None:
    rng, y = np.random.default_rng(1), counts()
    y[0, :3] = 0
    likelihood = kind(zero_inflation=inflated)
    likelihood.adapt((K,))
    likelihood.double()
    dispersion, zero = rng.uniform(0.5, 4.0, K), rng.uniform(0.1, 0.6, K) * inflated
    with torch.no_grad():
        if isinstance(likelihood, NegativeBinomial):
            likelihood.log_dispersion.copy_(torch.from_numpy(np.log(dispersion)))
        if inflated:
            likelihood.zero_logit.copy_(torch.from_numpy(np.log(zero / (1 - zero))))
    out = rng.normal(size=y.shape)
    want = np.zeros(len(y))
    for n in range(len(y)):
        for g in range(K):
            want[n] -= np.log(probability(kind, int(y[n, g]), np.exp(out[n, g]), dispersion[g], zero[g]))
    nll = likelihood.nll(torch.from_numpy(y).double(), torch.from_numpy(out))
    np.testing.assert_allclose(nll.detach().numpy(), want, rtol=1e-6)
    mean, variance = likelihood.mean(torch.from_numpy(out)), likelihood.variance(torch.from_numpy(out))
    grid = range(400)
    for g in range(K):
        p = np.array([probability(kind, k, np.exp(out[0, g]), dispersion[g], zero[g]) for k in grid])
        first = (p * grid).sum()
        np.testing.assert_allclose(mean[0, g].item(), first, rtol=1e-6)
        np.testing.assert_allclose(variance[0, g].item(), (p * np.square(np.array(grid) - first)).sum(), rtol=1e-5)
    point = torch.from_numpy(out).requires_grad_()
    assert torch.autograd.gradcheck(lambda o: likelihood.nll(torch.from_numpy(y).double(), o), [point])


def test_a_decoder_of_zeros_predicts_the_mean_rates_times_the_size() -> None:
    y = counts(40)
    sizes = y.sum(1).astype(float)
    zeros = torch.zeros(len(y), K, dtype=torch.float64)
    likelihood = ready(NegativeBinomial(), y, sizes)
    mean = likelihood.mean(likelihood.sized(zeros, torch.from_numpy(sizes)))
    np.testing.assert_allclose(mean.detach(), sizes[:, None] * y.mean(0) / y.mean(0).sum(), rtol=1e-6)
    np.testing.assert_allclose(mean.sum(1).detach(), sizes, rtol=1e-9)  # rates are shares of the total
    typical = likelihood.mean(likelihood.sized(zeros[:1], None)).detach()
    np.testing.assert_allclose(typical.sum(), np.sort(sizes)[19], rtol=1e-9)
    by_column = ready(Poisson(size="depth"), y, 10.0 * sizes)
    mean = by_column.mean(by_column.sized(zeros, torch.from_numpy(10.0 * sizes)))
    np.testing.assert_allclose(mean, sizes[:, None] * y.mean(0) / sizes.mean(), rtol=1e-6)
    without = ready(Poisson(size=None), y)
    np.testing.assert_allclose(without.mean(without.sized(zeros[:1], None))[0], y.mean(0), rtol=1e-6)


def test_sizes_are_totals_and_account_for_what_is_missing() -> None:
    y = counts(2000, seed=3) + 1
    likelihood = ready(NegativeBinomial(), y, y.sum(1).astype(float))
    whole = torch.from_numpy(y).double()
    np.testing.assert_array_equal(likelihood.sizes(whole, None, None), y.sum(1))
    mask = torch.ones_like(whole, dtype=torch.bool)
    mask[:, :2] = False
    found = likelihood.sizes(whole * mask, mask, None)
    assert abs(found.mean().item() / y.sum(1).mean() - 1.0) < 0.02  # not 3 / 5 of it
    mask[0] = False  # nothing is known of this sample: typical
    assert abs(likelihood.sizes(whole * mask, mask, None)[0].item() / likelihood.typical.item() - 1.0) < 1e-9
    given = torch.arange(1.0, 2001.0)
    assert Poisson(size="depth").sizes(whole, None, given) is given
    assert Poisson(size=None).sizes(whole, None, given) is None


def test_the_size_of_a_complete_sample_is_its_total_whether_or_not_others_have_gaps() -> None:
    y = counts(200, seed=4) * 10 + 1
    likelihood = ready(NegativeBinomial(), y, y.sum(1).astype(float))
    shallow = torch.tensor([[2.0, 0.0, 1.0, 0.0, 0.0], [900.0, 100.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.ones_like(shallow, dtype=torch.bool)
    np.testing.assert_allclose(likelihood.sizes(shallow, mask, None), [3.0, 1000.0], rtol=1e-6)
    mask[1, 0] = False  # the gap of one sample has no effect on the other
    np.testing.assert_allclose(likelihood.sizes(shallow * mask, mask, None)[0], 3.0, rtol=1e-6)


@pytest.mark.parametrize("dispersion", [1.0, 99.0, 3e3, 3e4, 1e6])
def test_densities_and_gradients_in_float32_up_to_the_largest_dispersions(dispersion: float) -> None:
    """Next to Poisson, where differences of large log Gamma functions would lose all digits."""
    likelihood = NegativeBinomial(dispersion, size=None)
    likelihood.adapt((1,))
    y, mean = np.array([0.0, 3.0, 60.0, 400.0])[:, None], np.array([5.0, 5.0, 50.0, 500.0])[:, None]
    out = torch.tensor(mean, dtype=torch.float32).log().requires_grad_()
    found = likelihood.nll(torch.tensor(y, dtype=torch.float32), out)

    def want(log_dispersion: float, log_mean: np.ndarray) -> np.ndarray:
        r = np.exp(log_dispersion)
        return -stats.nbinom.logpmf(y, r, r / (r + np.exp(log_mean)))

    start, step = np.log(dispersion), 1e-3
    np.testing.assert_allclose(found.detach().numpy(), want(start, np.log(mean))[:, 0], atol=2e-3)
    found.sum().backward()
    slopes = (want(start, np.log(mean) + step) - want(start, np.log(mean) - step)) / (2.0 * step)
    np.testing.assert_allclose(out.grad.numpy(), slopes, atol=2e-2, rtol=1e-3)
    slope = (want(start + step, np.log(mean)) - want(start - step, np.log(mean))).sum() / (2.0 * step)
    np.testing.assert_allclose(likelihood.log_dispersion.grad.numpy(), [slope], atol=2e-3, rtol=1e-3)


def test_encoders_see_normalised_counts_on_a_log_scale() -> None:
    y = counts(40) + 1
    likelihood = ready(NegativeBinomial(), y, y.sum(1).astype(float))
    seen = likelihood.encoder_input(torch.from_numpy(y).double())
    np.testing.assert_allclose(seen, np.log1p(y * np.sort(y.sum(1))[19] / y.sum(1, keepdims=True)), rtol=1e-9)
    deeper = likelihood.encoder_input(torch.from_numpy(7 * y).double())
    torch.testing.assert_close(deeper, seen)
    np.testing.assert_allclose(Poisson(size=None).encoder_input(torch.tensor([[0.0, 9.0]])), [[0.0, np.log(10.0)]])


def test_errors_are_poisson_deviances() -> None:
    y, mean = counts(3).astype(float), np.random.default_rng(2).uniform(0.5, 9.0, (3, K))
    y[0, 0] = 0.0
    saturated = stats.poisson.logpmf(y, np.maximum(y, 1e-300))
    want = 2.0 * (saturated - stats.poisson.logpmf(y, mean))
    np.testing.assert_allclose(Poisson().error(torch.from_numpy(y), torch.from_numpy(mean)), want, rtol=1e-9)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(2.0), NegativeBinomial(2.0, zero_inflation=True)])
def test_draws_are_counts_of_the_right_moments(likelihood: Counts) -> None:
    likelihood = likelihood.double()
    out = torch.full((40_000, 2), np.log(3.0), dtype=torch.float64)
    mean, var = likelihood.mean(out).detach(), likelihood.variance(out).detach()
    drawn = likelihood.noisy(mean, var, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, drawn.round()) and drawn.min() >= 0
    assert abs(drawn.mean() / mean[0, 0] - 1.0) < 0.02 and abs(drawn.var() / var[0, 0] - 1.0) < 0.05


@pytest.mark.parametrize(("given", "message"), [(0, "size must be"), ("", "size must be"), (True, "size must be")])
def test_wrong_sizes_are_refused(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Poisson(size=given)  # type: ignore[arg-type]


def test_the_words_of_the_command_line() -> None:
    made = counts_by_words("negative_binomial", "depth")
    assert isinstance(made, NegativeBinomial) and made.size_column == "depth"
    with pytest.raises(ValueError, match="sizes belong to the likelihoods negative_binomial, poisson, got gaussian"):
        counts_by_words("gaussian", "depth")
