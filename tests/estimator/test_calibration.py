"""Noise measured on known answers: the curve, what predictions make of it, and coverage on fresh data."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from gppvae import GPPVAE, Likelihood
from gppvae.data.table import Table
from gppvae.estimator.calibration import LEAST_STD, NORMAL, Calibration, calibrate, half_width
from gppvae.estimator.prediction import Prediction, mean_and_std
from gppvae.kernels import Learned
from tiny import KERNEL, held_out, spots

# -- the curve itself


def predicted(spread: np.ndarray, error_std: np.ndarray, seed: int = 0) -> tuple[torch.Tensor, Prediction]:
    """True samples and predictions whose errors have the given standard deviation, value by value."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=spread.shape).astype(np.float32)
    y = mean + error_std * rng.normal(size=spread.shape)
    return torch.from_numpy(y.astype(np.float32)), Prediction(mean, spread.astype(np.float32))


def spreads(n: int = 400, values: int = 40, seed: int = 1) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).uniform(np.log(0.01), np.log(1.0), size=(n, values)))


@pytest.mark.parametrize("factor", [1.0, 1.7, 4.0])
def test_errors_in_proportion_to_the_spread_are_recovered(factor: float) -> None:
    spread = spreads()
    found = calibrate(*_with_mask(predicted(spread, factor * spread)))
    asked = spreads(50, seed=2)
    ratio = found.total_std(asked[:, None, None])[:, 0, 0] / (factor * asked)
    inner = ratio[(asked > 0.015) & (asked < 0.7)]  # beyond its bins the curve is constant
    assert np.median(inner) == pytest.approx(1.0, rel=0.05)
    assert np.quantile(np.abs(inner - 1.0), 0.9) < 0.2  # whole samples follow their spread in part only
    assert found.error_var == pytest.approx(np.mean((factor * spread) ** 2), rel=0.05)


def test_errors_that_ignore_the_spread_are_recovered() -> None:
    spread = spreads(1600)
    found = calibrate(*_with_mask(predicted(spread, np.full_like(spread, 2.0))))
    np.testing.assert_allclose(found.total_std(spreads(50, seed=2)[:, None, None]), 2.0, rtol=0.1)
    assert found.error_var == pytest.approx(4.0, rel=0.05)


def test_noise_adds_to_the_spread() -> None:
    spread = spreads()
    found = calibrate(*_with_mask(predicted(spread, np.sqrt(spread**2 + 0.2**2))))
    asked = spreads(50, seed=2)
    total = found.total_std(asked[:, None, None])[:, 0, 0]
    truth = np.sqrt(asked**2 + 0.2**2)
    assert np.median(total / truth) == pytest.approx(1.0, rel=0.05)
    assert np.quantile(np.abs(total / truth - 1.0), 0.9) < 0.15


def _with_mask(pair: tuple[torch.Tensor, Prediction]) -> tuple[torch.Tensor, None, Prediction]:
    """Grey images of one row of pixels, so that the curve says all."""
    y, found = pair
    assert found.std is not None
    return y[:, None, None], None, Prediction(found.mean[:, None, None], found.std[:, None, None])


def test_values_that_were_not_observed_do_not_count() -> None:
    spread = spreads()
    y, prediction = predicted(spread, spread)
    mask = torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    spoiled = torch.where(mask, y, torch.tensor(1e3))
    found = calibrate(spoiled[:, None, None], mask[:, None, None], _with_mask((y, prediction))[2])
    plain = calibrate(*_with_mask((y, prediction)))
    asked = spreads(20, seed=2)[:, None, None]
    np.testing.assert_allclose(found.total_std(asked), plain.total_std(asked), rtol=0.12)
    squares = (y.numpy() - prediction.mean)[mask.numpy()].astype(np.float64) ** 2
    assert found.error_var == pytest.approx(squares.mean(), rel=1e-6)


@pytest.mark.parametrize("n", [1, 7, 400])
def test_total_never_falls_and_ends_at_no_less_than_the_spread(n: int) -> None:
    """Also where errors shrink as the spread grows, and for few values."""
    spread = spreads(n, 11)
    found = calibrate(*_with_mask(predicted(spread, 0.01 / spread)))
    times = np.exp(np.linspace(-12, 6, 200))
    asked = (times[:, None] * spread[0]).astype(np.float32)[:, None, None]  # a sample that spreads more and more
    total = found.total_std(asked)
    assert total.dtype == np.float32 and total.shape == asked.shape
    assert (np.diff(total, axis=0) >= 0).all() and (total > 0).all()
    order = np.argsort(spread[0])  # and its values
    assert (np.diff(total[:, 0, 0, order], axis=1) >= -1e-6 * total[:, 0, 0, 1:]).all()
    assert (total[-1] > 0.999 * asked[-1]).all()
    assert (np.diff(found.spread) > 0).all() and (np.diff(found.error) >= 0).all()


def test_one_spread_has_the_error_of_all_its_values() -> None:
    """Where draws do not spread at all, which values come first must not decide."""
    error_std = np.repeat([[0.1], [1.0]], [200, 200], axis=0) * np.ones((1, 20))
    for spread in (np.zeros_like(error_std), np.full_like(error_std, 0.05)):
        found = calibrate(*_with_mask(predicted(spread, error_std)))
        total = found.total_std(spread[:1, None, None])
        assert total.min() == total.max() and 0.4 < total.min() < 0.8  # half err by 0.1, half by 1


def test_perfect_predictions_leave_a_positive_std() -> None:
    zeros = np.zeros((30, 10))
    found = calibrate(*_with_mask(predicted(zeros, zeros)))
    assert found.error_var == 0.0
    np.testing.assert_allclose(found.total_std(zeros[:, None, None]), LEAST_STD, rtol=1e-6)


@pytest.mark.parametrize("tails", [2.5, 100.0])
@pytest.mark.parametrize("shape", [(3, 4, 4), (5,)])
def test_every_channel_is_covered_as_it_says(shape: tuple[int, ...], tails: float) -> None:
    """Channels of different errors, normal ones and such with heavy tails; measured on other rows than judged."""
    rng = np.random.default_rng(0)
    size = np.linspace(0.5, 3.0, shape[0]).reshape(-1, *(1 for _ in shape[1:]))

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        spread = np.exp(rng.uniform(-3.0, 0.0, size=(n, *shape)))
        return size * np.sqrt(spread**2 + 0.1) * rng.standard_t(tails, size=(n, *shape)), spread

    (error, spread), (fresh, fresh_spread) = rows(4000), rows(4000)
    zero = np.zeros_like(error)
    found = calibrate(torch.from_numpy(error), None, Prediction(zero, spread))
    distance = np.abs(fresh) / found.total_std(fresh_spread)
    for channel in range(shape[0]):
        for level, low, high, width in ((0.5, 0.45, 0.6, 0.6745), (0.8, 0.75, 0.87, 1.2816), (0.9, 0.86, 0.94, 1.6449)):
            inside = (distance[:, channel] <= width).mean()
            assert low < inside < high, (channel, level, inside)


# -- intervals


@pytest.mark.parametrize("level", [0.1, 0.5, 0.68, 0.9, 0.99])
def test_intervals_are_normal_unless_tails_were_measured(level: float) -> None:
    found = Prediction(np.full((2, 3), 7.0), np.full((2, 3), 2.0))
    low, high = found.interval(level)
    below, above = norm.interval(level, 7.0, 2.0)
    if level in (0.5, 0.9, 0.99):  # between the measured levels, widths are interpolated
        np.testing.assert_allclose([low[0, 0], high[1, 2]], [below, above], rtol=1e-6)
    else:
        np.testing.assert_allclose([low[0, 0], high[1, 2]], [below, above], rtol=1e-3)


def test_widths_grow_with_the_level_through_the_measured_ones() -> None:
    widths = np.array([0.4, 1.1, 2.0])
    levels = np.linspace(0.001, 0.999, 300)
    found = half_width(levels, widths)
    assert (np.diff(found) > 0).all()
    for level, width in zip((0.5, 0.8, 0.9), widths, strict=True):
        assert half_width(level, widths) == pytest.approx(width)
    beyond = norm.ppf(0.5 + 0.99 / 2) / norm.ppf(0.95)
    assert half_width(0.99, widths) == pytest.approx(2.0 * beyond)


@pytest.mark.parametrize("shape", [(3, 6, 6), (5,)])
def test_intervals_have_their_share_of_heavy_tailed_errors(shape: tuple[int, ...]) -> None:
    """Half of the errors are a tenth of the rest, whatever the draws say: no standard deviation fits all levels."""
    rng = np.random.default_rng(1)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        spread = np.exp(rng.uniform(-1.0, 0.0, size=(n, *shape)))
        size = np.where(rng.random((n, *shape)) < 0.5, 0.1, 1.0)
        return spread * size * rng.normal(size=(n, *shape)), spread

    (error, spread), (fresh, fresh_spread) = rows(400), rows(2000)
    found = calibrate(torch.from_numpy(error), None, Prediction(np.zeros_like(error), spread))
    asked = Prediction(np.zeros_like(fresh), found.total_std(fresh_spread), found.widths)
    for level in (0.5, 0.8, 0.9):
        low, high = asked.interval(level)
        assert ((low <= fresh) & (fresh <= high)).mean() == pytest.approx(level, abs=0.03)
    assert (np.abs(fresh) < norm.ppf(0.75) * asked.std).mean() > 0.57  # normal intervals are too wide there


def test_few_rows_and_training_rows_hardly_say_anything_of_tails() -> None:
    rng = np.random.default_rng(0)
    error, spread = rng.standard_t(1.5, size=(3, 40)), np.ones((3, 40))
    pair = torch.from_numpy(error), None, Prediction(np.zeros_like(error), spread)
    few = calibrate(*pair)
    exact = np.quantile(np.abs(error) / few.total_std(spread), (0.5, 0.8, 0.9)) / NORMAL
    np.testing.assert_allclose(few.widths, NORMAL * exact ** (3 / 8), rtol=1e-5)
    np.testing.assert_array_equal(calibrate(*pair, trained_on=True).widths, NORMAL)


def test_a_level_may_be_a_number_of_numpy() -> None:
    found = Prediction(np.zeros((1, 2)), np.ones((1, 2)))
    np.testing.assert_allclose(found.interval(np.float32(0.5)), found.interval(0.5), rtol=1e-6)


@pytest.mark.parametrize("level", [0.0, 1.0, 90, True, "wide", float("nan")])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
        Prediction(np.zeros((1, 2)), np.ones((1, 2))).interval(level)


def test_intervals_end_where_values_end() -> None:
    mean, std = np.array([[0.1, 0.5, 0.9]]), np.array([[0.2, 0.1, 0.2]])
    low, high = Prediction(mean, std, least_value=0.0, most_value=1.0).interval(0.9)
    np.testing.assert_allclose(low, [[0.0, 0.335515, 0.571029]], atol=1e-5)
    np.testing.assert_allclose(high, [[0.428971, 0.664485, 1.0]], atol=1e-5)


def test_an_interval_needs_a_std() -> None:
    with pytest.raises(ValueError, match="n_samples=64"):
        Prediction(np.zeros((1, 2)), None).interval()


def images(follows: float, n: int = 60, typical: float = 0.05, seed: int = 0) -> tuple[torch.Tensor, Prediction]:
    """Images of which some spread more than others, and some pixels; how much an image errs follows in part."""
    rng = np.random.default_rng(seed)
    pixels = np.exp(rng.uniform(-1.0, 1.0, size=(n, 2, 8, 8)))
    pixels /= np.sqrt(np.square(pixels).mean(axis=(1, 2, 3), keepdims=True))
    of_image = typical * np.exp(np.linspace(-0.7, 0.7, n)).reshape(-1, 1, 1, 1)
    size = (of_image / typical) ** follows
    mean = rng.normal(size=pixels.shape).astype(np.float32)
    y = mean + 0.2 * size * pixels * rng.normal(size=pixels.shape)
    return torch.from_numpy(y.astype(np.float32)), Prediction(mean, (of_image * pixels).astype(np.float32))


@pytest.mark.parametrize("follows", [0.0, 0.3])
def test_images_that_spread_more_err_more_as_far_as_errors_show_it(follows: float) -> None:
    y, prediction = images(follows)
    found = calibrate(y, None, prediction)
    assert found.follows == pytest.approx(follows, abs=0.06)
    assert found.typical == pytest.approx(0.05, rel=0.1)
    assert prediction.std is not None
    of_errors = np.abs(y.numpy() - prediction.mean) / found.total_std(prediction.std)
    for part in np.array_split(of_errors, 3):  # images that spread little, as usual, and much
        assert 0.77 < (part < 1.2816).mean() < 0.83


def test_how_errors_follow_is_drawn_to_the_usual_power_where_rows_are_equally_uncertain() -> None:
    """Rows held out of a grid all lie in gaps of one size; those asked for lie closer."""
    y, prediction = images(0.0, n=18)
    rng = np.random.default_rng(3)
    found = calibrate(y, None, prediction, uncertainty=0.5 * np.exp(0.01 * rng.normal(size=18)))
    assert found.follows == pytest.approx(0.4, abs=0.02) and found.typical == pytest.approx(0.5, rel=0.01)
    assert found.typical_spread == pytest.approx(0.05, rel=0.1) and prediction.std is not None
    far, near = (found.total_std(prediction.std, np.full(18, size)) for size in (0.5, 0.25))
    np.testing.assert_allclose(near / far, 0.5**found.follows, rtol=1e-5)


def test_the_slope_between_uncertain_and_certain_rows_counts_by_how_well_it_is_known() -> None:
    """Against the posterior of a slope with a normal prior, from its normal equations."""
    y, prediction = images(0.0, n=40)
    rng = np.random.default_rng(5)
    for spread in (0.05, 0.2, 0.8):
        uncertain = np.exp(spread * rng.normal(size=40))
        found = calibrate(y, None, prediction, uncertainty=uncertain)
        x, e = np.log(uncertain), 0.5 * np.log(np.square(y.numpy() - prediction.mean).mean((1, 2, 3), dtype=np.float64))
        design = np.stack([np.ones(40), x], axis=1)
        rest = np.linalg.lstsq(design, e, rcond=None)[1]
        precision = design.T @ design / (rest[0] / 38) + np.diag([0.0, 1.0 / 0.12**2])
        mean = np.linalg.solve(precision, design.T @ e / (rest[0] / 38) + np.array([0.0, 0.4 / 0.12**2]))
        assert found.follows == pytest.approx(np.clip(mean[1], 0.0, 0.4), abs=1e-6)


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_variance_that_is_carried_over_goes_where_draws_spread(times: float) -> None:
    """An added object errs where the decoder is unsure, not in the background."""
    rng = np.random.default_rng(0)
    draws = [torch.from_numpy(x) for x in rng.normal(size=(200, 3, 1, 4, 4)) * np.linspace(0.0, 2.0, 4)]
    unit = np.full((1, 1, 1), 2.0)
    pairs = [(x, torch.zeros(())) for x in draws]
    plain = mean_and_std(pairs, False, None, unit)
    kriged = torch.zeros(3, 1, 4, 4), torch.tensor([0.0, 0.1, 0.4]) * times
    wide = mean_and_std(pairs, False, None, unit, kriged=kriged)
    np.testing.assert_array_equal(wide["mean"], plain["mean"])
    more = wide["std"] ** 2 - plain["std"] ** 2
    np.testing.assert_allclose(more.mean((1, 2, 3)), 4.0 * kriged[1], rtol=1e-5, atol=1e-6)
    assert np.abs(more[..., 0]).max() < 1e-6
    assert (more[1:, ..., 3] > 2.0 * more[1:].mean((1, 2, 3), keepdims=True)[..., 0]).all()


@pytest.mark.parametrize("rms", [1.0, 2.0])
def test_the_mean_square_that_kriging_leaves_becomes_a_width(rms: float) -> None:
    """A calibration that leaves spreads as they are shows what was added to them."""
    one = np.ones(1)
    measured = Calibration(one, 1e-6 * one, 0.0, one, 1.0, 1e-6, 0.0, one, rms=rms)
    draws = [torch.from_numpy(x) for x in np.random.default_rng(0).normal(size=(300, 2, 1, 4, 4))]
    pairs = [(x, torch.zeros(())) for x in draws]
    kriged, unit = (torch.zeros(2, 1, 4, 4), torch.tensor([0.3, 0.6])), np.full((1, 1, 1), 2.0)
    plain = mean_and_std(pairs, False, None, unit)["std"]
    wide = mean_and_std(pairs, True, measured, unit, np.ones(2), kriged)["std"]
    np.testing.assert_allclose((wide**2 - plain**2).mean((1, 2, 3)), 4.0 * np.array([0.3, 0.6]) / rms**2, rtol=1e-4)


def test_images_of_which_nothing_was_observed_say_nothing_of_how_errors_follow() -> None:
    y, prediction = images(0.3)
    mask = torch.ones(y.shape, dtype=torch.bool)
    mask[40:50] = False  # some that spread much
    plain = calibrate(y[[*range(40), *range(50, 60)]], None, Prediction(*(
        part[[*range(40), *range(50, 60)]] for part in (prediction.mean, prediction.std)
    )))  # fmt: skip
    assert calibrate(y, mask, prediction).follows == pytest.approx(plain.follows)


def test_errors_of_images_never_follow_the_spread_of_images_in_full() -> None:
    """Rows held out differ by what they show; those asked for lie closer to others, and err nearly as much."""
    y, prediction = images(0.99)
    found = calibrate(y, None, prediction)
    assert found.follows == 0.4


def test_values_keep_their_own_size_where_all_spread_less() -> None:
    """A value that spreads little and errs little says nothing of one that spreads less than usual."""
    rng = np.random.default_rng(0)
    size = np.array([0.02, 0.1, 0.5])

    def rows(n: int, usual: float) -> tuple[np.ndarray, np.ndarray]:
        spread = usual * np.array([0.2, 0.4, 0.6]) * np.exp(0.2 * rng.normal(size=(n, 1)))
        return size * rng.normal(size=(n, 3)), spread

    error, spread = rows(600, 1.0)
    found = calibrate(torch.from_numpy(error), None, Prediction(np.zeros_like(error), spread), uncertainty=np.ones(600))
    fresh, closer = rows(3000, 0.6)
    for value, distance in enumerate((np.abs(fresh) / found.total_std(closer, np.ones(3000))).T):
        assert 0.85 < (distance < 1.6449).mean() < 0.94, value


def test_images_far_from_the_data_spread_as_their_draws_do() -> None:
    y, prediction = images(0.0)
    found = calibrate(y, None, prediction)
    assert prediction.std is not None
    far = 100.0 * prediction.std[:3]
    ratio = found.total_std(far) / far
    assert ratio.min() > 0.999 and ratio.max() < 1.3  # what follows of the errors adds little


@pytest.mark.parametrize("of_images", [False, True])
def test_a_calibration_survives_json(of_images: bool) -> None:
    spread = spreads()
    y, prediction = images(0.2)
    given = (y, None, prediction) if of_images else _with_mask(predicted(spread, 2.0 * spread))
    found = calibrate(*given)
    again = Calibration.from_json(json.loads(json.dumps(found.to_json())))
    asked = np.exp(np.linspace(-8, 3, 48)).astype(np.float32).reshape((3, 2, 2, 4) if of_images else -1)
    np.testing.assert_array_equal(again.total_std(asked), found.total_std(asked))
    assert again.to_json() == found.to_json()
    old = {name: value for name, value in found.to_json().items() if name != "widths"}  # of version 0.2
    np.testing.assert_array_equal(Calibration.from_json(old).widths, NORMAL)


def test_a_damaged_calibration_is_refused() -> None:
    y, prediction = images(0.2)
    saved, nan = calibrate(y, None, prediction).to_json(), float("nan")
    for name, values in {
        "typical": (0.0, nan),
        "typical_spread": (0.0, nan),
        "follows": (1.5, nan),
        "pattern": ([], [0.0]),
        "error_var": (-1.0,),
        "rms": (0.0, nan),
        "widths": ([0.5, 0.4, 1.0], [1.0], [0.5, nan, 1.0], [0.0, 1.0, 2.0]),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match="a calibration must have"):
                Calibration.from_json(saved | {name: value})


# -- through the estimator

NOISE = 0.1
SETTINGS: dict[str, Any] = {
    "latent_dim": 3, "network": "mlp", "width": 32, "batch_size": 32, "pixel_var": NOISE**2, "alpha": 0.003,
    "inference": "global", "epochs": 60, "lr": 3e-3, "prior_lr": 3e-2,
}  # fmt: skip


def noisy(seed: int, n_views: int = 24) -> tuple[np.ndarray, pd.DataFrame]:
    images, table = spots(6, n_views)
    noise = NOISE * np.random.default_rng(seed).normal(size=images.shape)
    return (images + noise).astype(np.float32), table


@pytest.fixture(scope="module")
def model() -> GPPVAE:
    return GPPVAE(KERNEL, **SETTINGS).fit(*noisy(0), validation=noisy(1), progress=False)


def covered(truth: np.ndarray, found: Prediction, level: float = 1.6449) -> float:
    assert found.std is not None
    return float((np.abs(truth - found.mean) <= level * found.std).mean())


def test_intervals_of_new_samples_cover_what_they_say(model: GPPVAE) -> None:
    fresh, table = noisy(2)
    with_noise = model.predict(table, n_samples=32, include_noise=True)
    assert 0.85 < covered(fresh, with_noise) < 0.95
    assert with_noise.std is not None and with_noise.std.mean() == pytest.approx(NOISE, rel=0.25)
    assert covered(fresh, model.predict(table, n_samples=32)) < 0.6  # those of the mean image are narrower


def test_total_std_of_a_prediction_is_the_curve_at_its_spread(model: GPPVAE) -> None:
    table = noisy(2)[1].iloc[:20]
    plain, total = (model.predict(table, 16, include_noise=noise, seed=4) for noise in (False, True))
    assert model.calibration_ is not None and plain.std is not None
    np.testing.assert_array_equal(total.mean, plain.mean)
    uncertainty = left_by(model, table)
    assert uncertainty.min() > 0.0 and uncertainty.max() < 1.0 and np.ptp(uncertainty) > 0.04 * uncertainty.mean()
    np.testing.assert_allclose(total.std, model.calibration_.total_std(plain.std, uncertainty), rtol=1e-5)


def left_by(model: GPPVAE, table: Any) -> np.ndarray:
    """Standard deviation of the latents at rows relative to that of the prior: kernel, then noise."""
    prior = model.prior_
    alpha = float(prior.groups[0].alpha.detach())
    before = prior.kernels[0].diag(prior.code(Table(table))).detach().numpy() + alpha
    std: np.ndarray = np.sqrt(model.predict_latent(table)[1].mean(1) / before)
    return std


def test_calibration_uses_the_rows_given(model: GPPVAE) -> None:
    kept = model.calibration_
    fresh, table = noisy(3)
    model.calibrate(fresh + 0.5, table)
    assert model.calibration_ is not None and kept is not None
    assert model.calibration_.error_var == pytest.approx(kept.error_var + 0.25, rel=0.1)
    model.calibrate(fresh, table)
    assert model.calibration_.error_var == pytest.approx(kept.error_var, rel=0.1)
    for samples, rows, message in (
        (fresh[:5], table, "one table row per sample, got 5 samples and 144 rows"),
        (fresh[:, :4], table, "as in training"),
        (fresh, table.assign(spot="nobody"), "known from training"),
        (fresh[:0], table[:0], "at least one sample"),
        (np.where(fresh == fresh.max(), np.nan, fresh), table, "expected finite samples"),
    ):
        before = model.calibration_
        with pytest.raises(ValueError, match=message):
            model.calibrate(samples, rows)
        assert model.calibration_ is before
    model.calibration_ = kept


def test_a_value_that_no_held_out_row_observed_has_the_noise_of_the_others() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"time": np.tile(np.arange(10.0), 20)})
    y = np.sin(table["time"].to_numpy()[:, None] + np.arange(4)) * [1.0, 10.0, 100.0, 100.0]
    y = y * (1.0 + 0.3 * rng.normal(size=y.shape))
    rare = np.arange(len(y)) % 50 != 7  # four rows remain, all of them trained on
    y[rare, 3] = np.nan
    fresh = y[:60]
    model = GPPVAE("RBF(time)", missing="mask", inference="leave_out", epochs=2)
    model.fit(y[60:], table[60:], validation=(fresh[rare[:60]], table[:60][rare[:60]]), progress=False)
    var = model.model_.autoencoder.likelihood.var.numpy()
    error = (fresh - model.predict(table[:60]).mean)[rare[:60], :3]
    spread = np.nanstd(y[60:], axis=0)[:3]
    np.testing.assert_allclose(var[:3], np.square(error / spread).mean(0), rtol=1e-3)
    assert var[3] == pytest.approx(var[:3].mean(), rel=1e-5)


def test_calibration_needs_a_value_that_was_observed() -> None:
    images, table = noisy(0, 6)
    model = GPPVAE(KERNEL, missing="mask", **(SETTINGS | {"epochs": 1})).fit(images, table, progress=False)
    before = model.calibration_
    with pytest.raises(ValueError, match="at least one observed value"):
        model.calibrate(np.full_like(images, np.nan), table)
    assert model.calibration_ is before


def test_draws_with_noise_scatter_as_the_prediction_says(model: GPPVAE) -> None:
    """Quantiles of draws are the ends of the intervals; draws without noise stay as they were."""
    table = noisy(2)[1].iloc[:30]
    said = model.predict(table, 64, include_noise=True)
    plain, drawn = (model.sample(table, 400, include_noise=noise, seed=3) for noise in (False, True))
    assert said.std is not None
    ratio = drawn.std(0) / said.std
    assert np.median(ratio) == pytest.approx(1.0, rel=0.1) and ratio.min() > 0.7 and ratio.max() < 1.6
    low, high = said.interval(0.8)
    assert ((low <= drawn) & (drawn <= high)).mean() == pytest.approx(0.8, abs=0.05)
    assert plain.std(0).mean() < 0.6 * drawn.std(0).mean()
    np.testing.assert_array_equal(drawn, model.sample(table, 400, include_noise=True, seed=3))


def test_a_prediction_has_the_measured_widths_only_with_noise(model: GPPVAE) -> None:
    table = noisy(2)[1].iloc[:5]
    assert model.calibration_ is not None
    np.testing.assert_array_equal(model.predict(table, 8, include_noise=True).widths, model.calibration_.widths)
    np.testing.assert_array_equal(model.predict(table, 8).widths, NORMAL)


def test_without_calibration_the_likelihood_says_the_noise(model: GPPVAE) -> None:
    kept, table = model.calibration_, noisy(2)[1].iloc[:10]
    model.calibration_ = None
    plain, total = (model.predict(table, 16, include_noise=noise, seed=4) for noise in (False, True))
    model.calibration_ = kept
    assert plain.std is not None and total.std is not None
    np.testing.assert_allclose(total.std**2, plain.std**2 + NOISE**2, rtol=1e-4)
    np.testing.assert_array_equal(total.mean, plain.mean)


def test_other_likelihoods_know_their_noise() -> None:
    images, table, _, wanted = held_out()
    settings = SETTINGS | {"epochs": 3, "likelihood": "bernoulli"}
    model = GPPVAE(KERNEL, **settings).fit(images, table, progress=False)
    model.calibrate(images, table)
    assert model.calibration_ is None
    n = 40
    plain, total = (model.predict(wanted, n, include_noise=noise, seed=4) for noise in (False, True))
    drawn = model.sample(wanted, n, seed=4)
    assert plain.std is not None and total.std is not None
    np.testing.assert_allclose(total.std**2 - plain.std**2, (drawn * (1 - drawn)).mean(0), rtol=0.02)


def test_validation_rows_that_cannot_be_predicted_leave_it_to_training_rows() -> None:
    images, table = noisy(0, 6)
    other = table.assign(spot="nobody")
    settings = SETTINGS | {"epochs": 2}
    plain = GPPVAE(KERNEL, **settings).fit(images, table, progress=False)
    model = GPPVAE(KERNEL, **settings).fit(images, table, validation=(images + 1.0, other), progress=False)
    assert model.calibration_ is not None and plain.calibration_ is not None
    assert model.calibration_.to_json() == plain.calibration_.to_json()


# -- far from the data


@pytest.mark.parametrize("inference", ["global", "minibatch"])
@pytest.mark.parametrize(
    "kernel", ["Learned(spot, 3) * RBF(angle, lengthscale=40.0)", "RBF(angle) + 0.5 * Learned(spot, 2)"]
)
def test_far_from_the_data_the_prior_variance_returns(inference: str, kernel: str) -> None:
    images, table, _, _ = held_out()
    settings = SETTINGS | {"epochs": 5, "inference": inference, "warmup_epochs": 2, "gp_epochs": 5}
    model = GPPVAE(kernel, **settings).fit(images, table, progress=False)
    assert model.model_ is not None
    (leaf,) = [leaf for leaf in model.kernel_.leaves() if isinstance(leaf, Learned)]
    scale = [float(p.detach().exp()) for name, p in model.kernel_.named_parameters() if name.endswith("log_value")]
    length = [float(x @ x) for x in leaf.x.detach().numpy()]
    alpha = float(model.prior_.groups[0].alpha.detach())
    mean, var = model.predict_latent({"spot": leaf.levels, "angle": [1e5] * 5})
    near = model.predict_latent({"spot": leaf.levels, "angle": [60.0] * 5})[1]
    if "+" in kernel:  # the part of the angle is unknown again, that of the spot is not
        assert (var > 1.0 + alpha).all() and (var < 1.0 + alpha + scale[0] * np.array(length)[:, None]).all()
    else:
        np.testing.assert_allclose(var, np.repeat(np.array(length)[:, None], 3, axis=1) + alpha, rtol=1e-6)
        np.testing.assert_allclose(mean, 0.0, atol=1e-9)
    assert (var > near).all()


def test_a_likelihood_of_your_own_is_calibrated_where_noise_is_additive() -> None:
    class Laplace(Likelihood):
        additive_noise = True

        def nll(self, y: torch.Tensor, out: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return ((y - out).abs() / 0.1 + np.log(0.2)).flatten(1).sum(1)

        def mean(self, out: torch.Tensor) -> torch.Tensor:
            return out

        def variance(self, out: torch.Tensor) -> torch.Tensor:
            return torch.full_like(out, 0.02)

    class Other(Laplace):
        additive_noise = False

    images, table, _, _ = held_out()
    settings = {"latent_dim": 3, "network": "mlp", "width": 8, "epochs": 2}
    own, other = (
        GPPVAE(KERNEL, likelihood=kind(), **settings).fit(images, table, progress=False) for kind in (Laplace, Other)
    )
    first = (model.resolved_["phases"][0]["inference"] for model in (own, other))
    assert list(first) == ["leave_out", "global"]
    assert other.calibration_ is None
    rows = {"spot": ["s0"], "angle": [45.0]}
    total, spread = (own.predict(rows, n_samples=16, include_noise=noise).std for noise in (True, False))
    np.testing.assert_allclose(total, own.calibration_.total_std(spread, left_by(own, rows)), rtol=1e-5)
    assert not np.allclose(total, np.sqrt(spread**2 + 0.02))
