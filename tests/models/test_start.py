"""The start from principal components against dense formulas and a search written here."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from gppvae.data.table import Table
from gppvae.kernels import parse_kernel
from gppvae.models.start import (
    MAX_COMPONENTS,
    Components,
    fit_components,
    left_out_error,
    principal_components,
    rows_for_start,
    some_values,
    spread_over,
    start_linear,
    unexplained_variance,
)


def field(n: int = 150, length: float = 0.8, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Places (n, 2) and six noisy values that are linear in two smooth functions of the place."""
    rng = np.random.default_rng(3)
    places = rng.uniform(0, 4, (n, 2))
    squares = ((places[:, None] - places[None]) ** 2).sum(2)
    functions = np.linalg.cholesky(np.exp(-0.5 * squares / length**2) + 1e-8 * np.eye(n)) @ rng.normal(size=(n, 2))
    return places, functions @ rng.normal(size=(2, 6)) + noise * rng.normal(size=(n, 6))


def dense_length(places: np.ndarray, scores: np.ndarray) -> float:
    """The length scale of greatest likelihood, one for both axes, amplitude and noise of each score its own."""
    squares = ((places[:, None] - places[None]) ** 2).sum(2)

    def loss(free: np.ndarray) -> float:
        total, n = 0.0, len(places)
        for c in range(scores.shape[1]):
            S = np.exp(-0.5 * squares / math.exp(2 * free[0])) + (math.exp(free[1 + c]) + 1e-6) * np.eye(n)
            total += 0.5 * n * math.log(scores[:, c] @ np.linalg.solve(S, scores[:, c]) / n)
            total += 0.5 * np.linalg.slogdet(S)[1]
        return total

    start = np.array([0.0, *([-2.0] * scores.shape[1])])
    return math.exp(minimize(loss, start, method="Nelder-Mead", options={"maxiter": 400}).x[0])


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    _, values = field()
    scores, loadings, std = principal_components(torch.tensor(values), None)
    standardised = (values - values.mean(0)) / values.std(0)
    left, sizes, right = np.linalg.svd(standardised, full_matrices=False)
    np.testing.assert_allclose(std.numpy(), sizes / math.sqrt(len(values)), rtol=1e-8)
    np.testing.assert_allclose(np.abs(loadings.numpy()), np.abs(right), atol=1e-8)
    rebuilt = (scores * std) @ loadings
    np.testing.assert_allclose(rebuilt.numpy(), (left * sizes) @ right, atol=1e-8)


def test_missing_values_count_as_the_mean() -> None:
    _, values = field(40)
    mask = torch.ones(values.shape, dtype=torch.bool)
    mask[3, 2] = False
    spoiled = torch.tensor(values)
    spoiled[3, 2] = 1e6
    filled = values.copy()
    filled[3, 2] = np.delete(values[:, 2], 3).mean()
    seen = (filled - filled.mean(0)) / np.sqrt((np.square(filled - filled.mean(0))).sum(0) / mask.numpy().sum(0))
    seen = seen - seen.mean(0)
    std = principal_components(spoiled, mask)[2].numpy()
    np.testing.assert_allclose(std, np.linalg.svd(seen, compute_uv=False) / math.sqrt(40), rtol=1e-8)


def test_length_scales_are_those_of_a_dense_search() -> None:
    places, values = field()
    table = Table({"x": places[:, 0], "y": places[:, 1]})
    kernel = parse_kernel("RBF(x, y)")
    kernel.bind(table)
    scores, _, std = principal_components(torch.tensor(values), None)
    signal, _ = fit_components(kernel, kernel.code(table), scores, std)
    found = kernel.leaves()[0].base.lengthscale.detach().numpy().ravel()
    expected = dense_length(places, scores[:, :4].numpy())
    assert np.abs(found / expected - 1.0).max() < 0.2  # one length per axis here, one for both there
    assert abs(np.sqrt(found.prod()) / expected - 1.0) < 0.05
    assert signal[:2].min() > 0.9 and signal[2:].max() < 0.1  # two functions, the rest is noise


def test_a_term_that_explains_nothing_gets_a_small_amplitude() -> None:
    places, values = field(100)
    table = Table({"x": places[:, 0], "y": places[:, 1], "z": np.random.default_rng(0).normal(size=100)})
    kernel = parse_kernel("1.0 * RBF(x, y) + 1.0 * RBF(z)")
    kernel.bind(table)
    scores, _, std = principal_components(torch.tensor(values), None)
    fit_components(kernel, kernel.code(table), scores, std)
    useful, useless = (float(torch.as_tensor(term.amplitude()).detach()) for term in kernel.terms())
    assert useless < 0.1 * useful


def dense_left_out_error(gram: np.ndarray, scores: np.ndarray, std: np.ndarray) -> float:
    """Every row is taken out, its scores are predicted from the others, errors are weighted by variance."""
    missed = 0.0
    for c in range(scores.shape[1]):
        noise = 1.0 / dense_signal(gram, scores[:, c]) - 1.0
        for n in range(len(scores)):
            others = np.delete(np.arange(len(scores)), n)
            S = gram[np.ix_(others, others)] + noise * np.eye(len(others))
            predicted = gram[n, others] @ np.linalg.solve(S, scores[others, c])
            missed += (std[c] * (scores[n, c] - predicted)) ** 2 / len(scores)
    return float(missed / np.square(std).sum())


def test_the_error_at_rows_left_out_is_that_of_leaving_each_out() -> None:
    places, values = field(40)
    kernel = parse_kernel("RBF(x, y)")
    table = Table({"x": places[:, 0], "y": places[:, 1]})
    kernel.bind(table)
    rows = kernel.code(table)
    scores, _, std = principal_components(torch.tensor(values), None)
    gram = kernel.gram(rows, rows).detach()
    expected = dense_left_out_error(gram.numpy(), scores.numpy(), std.numpy())
    assert 0.2 < expected < 0.9
    assert left_out_error(gram, scores, std) == pytest.approx(expected, rel=0.02)  # noises lie on a grid


def turning_objects(of_views: float) -> tuple[Table, torch.Tensor]:
    """Twenty objects in nine views: four values say which object it is, eight how it looks from a side."""
    rng = np.random.default_rng(0)
    who, angle = np.repeat(np.arange(20), 9), np.tile(np.arange(9) * 40.0, 20)
    half = np.sin(np.radians(angle[:9, None] - angle[None, :9]) / 2)
    views = np.linalg.cholesky(np.exp(-2 * half**2 / 1.4) + 1e-8 * np.eye(9))
    of_object = rng.normal(size=(20, 4))[who] + 0.35 * rng.normal(size=(180, 4))
    of_sides = np.concatenate([views @ rng.normal(size=(9, 8)) for _ in range(20)])
    scores = torch.tensor(np.column_stack([of_object, of_sides]))
    std = torch.tensor([1.0] * 4 + [of_views] * 8, dtype=torch.float64)
    return Table({"who": who, "angle": angle}), torch.cat([scores / scores.std(0), std[None]])


@pytest.mark.parametrize(("of_views", "varies"), [(0.7, True), (0.01, False)])
def test_an_optimum_where_views_say_nothing_is_taken_only_if_they_predict_nothing(
    of_views: float, varies: bool
) -> None:
    table, (*scores, std) = turning_objects(of_views)
    kernel = parse_kernel("Learned(who, 5) * Periodic(angle, 360)")
    kernel.bind(table, torch.Generator().manual_seed(0))
    fit_components(kernel, kernel.code(table), torch.stack(scores), std)
    length = float(kernel.leaves()[1].base.lengthscale.detach().squeeze())
    assert (length < 3.0) == varies, "the leading four scores alone are most likely where the angle says nothing"


def test_learned_vectors_stay_as_they_are() -> None:
    rng = np.random.default_rng(1)
    table = Table({"who": np.repeat(np.arange(6), 8), "t": np.tile(np.linspace(0, 1, 8), 6)})
    kernel = parse_kernel("Learned(who, 3) * RBF(t)")
    kernel.bind(table, torch.Generator().manual_seed(0))
    before = kernel.leaves()[0].x.detach().clone()
    fit_components(kernel, kernel.code(table), torch.tensor(rng.normal(size=(48, 3))), torch.ones(3))
    assert torch.equal(kernel.leaves()[0].x, before)


@pytest.mark.parametrize("kernel", ["Learned(who, 2) * RBF(t)", "RBF(t)"])
def test_whole_ids_are_taken(kernel: str) -> None:
    table = Table({"who": np.repeat(np.arange(100), 9), "t": np.tile(np.arange(9.0), 100)})
    bound = parse_kernel(kernel)
    bound.bind(table)
    picked = rows_for_start(bound.code(table), [bound], torch.Generator().manual_seed(0)).numpy()
    assert len(picked) == 512 and len(set(picked)) == 512
    counts = np.bincount(picked // 9, minlength=100)
    whole = ((counts == 9) | (counts == 0)).sum()
    assert whole >= 99 if "Learned" in kernel else whole < 90


# -- where values are missing


def holes(values: np.ndarray, share: float = 0.3) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(8).random(values.shape) > share)


def dense_signal(gram: np.ndarray, values: np.ndarray) -> float:
    """Share of the variance that a kernel explains at its most likely noise, by dense solves over a fine grid."""
    n, best = len(gram), (math.inf, 0.0)
    for delta in np.exp(np.linspace(math.log(1e-4), math.log(1e3), 300)):
        S = gram / gram.diagonal().mean() + delta * np.eye(n)
        loss = 0.5 * n * math.log(values @ np.linalg.solve(S, values) / n) + 0.5 * np.linalg.slogdet(S)[1]
        best = min(best, (loss, 1.0 / (1.0 + delta)))
    return best[1]


def test_what_the_kernel_explains_of_a_value_is_judged_where_it_was_observed() -> None:
    places, values = field()
    values = np.column_stack([values, np.random.default_rng(1).normal(size=len(values)), np.zeros(len(values))])
    mask = holes(values)
    mask[:, 7] = False  # never observed
    spoiled = torch.where(mask, torch.tensor(values), torch.tensor(1e6))
    table = Table({"x": places[:, 0], "y": places[:, 1]})
    kernel = parse_kernel("RBF(x, y)")
    kernel.bind(table)
    rows = kernel.code(table)
    scores, loadings, std = principal_components(spoiled, mask)
    signal, of_values = fit_components(kernel, rows, scores, std, some_values(spoiled, mask))
    assert of_values is not None and len(of_values) == 8
    gram = kernel.gram(rows, rows).detach().numpy()
    for place in range(7):
        seen = mask[:, place].numpy()
        own = (values[seen, place] - values[seen, place].mean()) / values[seen, place].std()
        expected = dense_signal(gram[np.ix_(seen, seen)], own)
        noise = (1.0 - of_values[place].item()) / (1.0 - expected)
        assert 0.8 < noise < 1.25, "a step of the grid of noises is a third of this range"
    assert of_values[6] < 0.1 and of_values[7] == 0.0
    found = Components(loadings, std, signal, of_values)
    np.testing.assert_allclose(unexplained_variance(found, 2).numpy(), 1.0 - of_values.numpy())


def test_without_holes_and_for_images_values_are_not_asked() -> None:
    values = torch.tensor(field()[1])
    assert some_values(values, None) is None and some_values(values, torch.ones_like(values, dtype=torch.bool)) is None
    assert some_values(torch.zeros(4, 1, 2, 2), torch.zeros(4, 1, 2, 2, dtype=torch.bool)) is None


def test_of_many_values_some_speak_for_all() -> None:
    many = 3 * MAX_COMPONENTS
    y = torch.randn(20, many, generator=torch.Generator().manual_seed(0))
    found = some_values(y, holes(y.numpy()))
    assert found is not None and found[0].shape == (20, MAX_COMPONENTS)
    of_some = torch.linspace(0.0, 1.0, MAX_COMPONENTS)
    whole = spread_over(of_some, many)
    assert whole[0] == 0.0 and whole[-1] == 1.0 and whole[1] == pytest.approx(0.5) and len(whole) == many
    np.testing.assert_array_equal(spread_over(of_some, MAX_COMPONENTS).numpy(), of_some.numpy())


def test_the_mask_says_nothing_where_an_encoder_starts() -> None:
    """Latents are scores over their standard deviation; in loops."""
    n_values, n_latents = 5, 2
    loadings = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)))[0][:3].double()
    found = Components(loadings, torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0.9, 0.5, 0.0]))
    encoder, decoder = torch.nn.Linear(2 * n_values, 2 * n_latents), torch.nn.Linear(n_latents, n_values)
    start_linear(encoder, decoder, found, alpha=0.3)
    y = torch.randn(5, generator=torch.Generator().manual_seed(1))
    for seen in (torch.ones(5), torch.zeros(5)):
        out = encoder(torch.cat([y, seen])).detach()
        for latent in range(n_latents):
            size = found.std[latent].item() * math.sqrt(found.signal[latent].item())
            score = sum(loadings[latent, k].item() * y[k].item() for k in range(n_values))
            assert out[latent].item() == pytest.approx(score / size, rel=1e-5)
            assert out[n_latents + latent].item() == pytest.approx(math.log(0.3), rel=1e-5)


def test_a_search_that_fails_everywhere_leaves_the_kernel_as_it_was() -> None:
    table = Table({"x": np.arange(12.0)})
    kernel = parse_kernel("RBF(x)")
    kernel.bind(table)
    before = kernel.leaves()[0].base.lengthscale.item()
    fit_components(kernel, kernel.code(table), torch.full((12, 1), torch.nan, dtype=torch.float64), torch.ones(1))
    assert kernel.leaves()[0].base.lengthscale.item() == before
