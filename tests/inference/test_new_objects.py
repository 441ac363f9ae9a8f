"""Vectors of new objects: with a linear decoder the exact Gaussian posterior in dense NumPy, else a loss that falls."""

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from gppvae.inference.new_objects import vector_prior
from gppvae.kernels import RBF, Categorical, FreeForm, Kernel, Learned, Linear, Periodic
from gppvae.likelihoods import Gaussian
from gppvae.models.objects import latents_by_vector
from gppvae.models.predict import latents_at
from inference.object_setting import (
    ALPHA,
    CASES,
    JITTER,
    NOISE,
    L,
    LinearDecoder,
    Problem,
    deviations,
    dict_rows,
    gaussian_posterior,
    prior_by_loops,
    seen_through,
)
from inference.setting import layouts

every_case = pytest.mark.parametrize("name", CASES)


# -- the prior of a vector


@every_case
def test_the_prior_is_the_shrunk_gaussian_of_the_trained_vectors(name: str) -> None:
    problem = Problem(CASES[name].make(), LinearDecoder())
    mean, cov = prior_by_loops(problem.leaves, 7)
    for added in (0, 2):
        J = len(mean)
        for leaf in problem.leaves if added else []:
            big = 50.0 * torch.ones(added, leaf.dim, dtype=torch.float64)
            leaf.add_levels(["new", "newer"], big, torch.zeros(added, leaf.dim, J, dtype=torch.float64))
        prior = vector_prior(problem.leaves, 2)
        np.testing.assert_allclose(prior.mean.numpy(), [mean, mean], rtol=1e-12)
        np.testing.assert_allclose(np.linalg.inv(prior.precision.numpy()), [cov, cov], rtol=1e-9, atol=1e-12)


# -- z = A'x + o


@every_case
def test_latents_are_the_dense_regression_on_training_latents(name: str) -> None:
    problem = Problem(CASES[name].make(), LinearDecoder())
    A, o = problem.affine(CASES[name])
    for split in layouts(problem.model, problem.rows):
        got = latents_by_vector(problem.model.prior, problem.condition(), problem.new, problem.leaves)
        np.testing.assert_allclose(got[0].numpy(), A, rtol=JITTER, atol=JITTER, err_msg=f"split by {split}")
        np.testing.assert_allclose(got[1].numpy(), o, rtol=JITTER, atol=JITTER, err_msg=f"split by {split}")


OTHER_LEAVES: dict[str, Callable[[], Kernel]] = {
    "RBF": lambda: RBF("time", lengthscale=0.8),
    "Periodic": lambda: Periodic("angle", 360),
    "FreeForm": lambda: FreeForm("pose"),
    "Categorical": lambda: Categorical("pose"),
    "Linear": lambda: Linear("time"),
    "own effect": lambda: Categorical("person"),
}
TERMS = st.lists(
    st.tuples(
        st.sampled_from(["none", "first", "last"]), st.lists(st.sampled_from(sorted(OTHER_LEAVES)), max_size=2)
    ).filter(lambda term: term[0] != "none" or term[1]),
    min_size=1,
    max_size=3,
).filter(lambda terms: any(place != "none" for place, _ in terms))


@given(terms=TERMS)
def test_trained_vectors_give_the_model_prediction_for_any_kernel(terms: list[tuple[str, list[str]]]) -> None:
    """At x of the row's own object, A'x + o is E z as predictions see it: any order, any sum, any split."""
    kernels = []
    for place, names in terms:
        factors = [OTHER_LEAVES[name]() for name in names]
        own = [Learned("person", 2)] if place != "none" else []
        factors = own + factors if place == "first" else factors + own
        term = factors[0]
        for factor in factors[1:]:
            term = term * factor
        kernels.append(0.7 * term)
    kernel = kernels[0]
    for term in kernels[1:]:
        kernel = kernel + term
    problem = Problem([(kernel, L)], LinearDecoder())
    for _ in layouts(problem.model, problem.rows):
        weights = problem.condition()
        A, o = latents_by_vector(problem.model.prior, weights, problem.new, problem.leaves)
        with torch.no_grad():
            want = latents_at(problem.model, weights, problem.new).mean.numpy()
        for n, row in enumerate(dict_rows(problem.new_table)):
            x = [leaf.x.detach().numpy()[leaf.levels.index(row["person"])] for leaf in problem.leaves]
            np.testing.assert_allclose(A[n].numpy().T @ np.concatenate(x) + o[n].numpy(), want[n], rtol=0, atol=1e-7)


# -- the fit with a linear decoder


@every_case
@pytest.mark.parametrize("holes", [False, True])
def test_with_a_linear_decoder_the_fit_is_the_exact_posterior(name: str, holes: bool) -> None:
    case = CASES[name]
    problem = Problem(case.make(), LinearDecoder())
    if holes:
        problem.y[np.random.default_rng(3).random(problem.y.shape) < 0.4] = np.nan
        problem.y[2] = np.nan  # a sample of which nothing was observed
    x, cov = problem.fit(Gaussian(NOISE), steps=10)
    prior, affine, spread = prior_by_loops(problem.leaves, 7), problem.affine(case), deviations(problem, case)
    for p in range(3):
        want = gaussian_posterior(*prior, seen_through(problem, *affine, spread, p, NOISE))
        np.testing.assert_allclose(x[p], want[0], rtol=JITTER, atol=JITTER)
        np.testing.assert_allclose(cov[p], want[1], rtol=JITTER, atol=JITTER)


@every_case
def test_the_start_is_ridge_regression_on_the_encoder(name: str) -> None:
    case = CASES[name]
    problem = Problem(case.make(), LinearDecoder())
    x, _ = problem.fit(Gaussian(NOISE), steps=0)
    A, o = problem.affine(case)
    layer = problem.model.autoencoder.encoder.layer
    encoded = problem.y.astype(np.float64) @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    prior, spread = prior_by_loops(problem.leaves, 7), deviations(problem, case)
    if name == "a term of unseen times":
        assert spread.max() > ALPHA + 0.5
    for p in range(3):
        observed = [
            (
                A[n][:, [latent]],
                encoded[n, [latent]] - o[n, latent],
                np.array([[np.exp(encoded[n, L + latent]) + spread[n, latent]]]),
            )
            for n in range(len(problem.y))
            for latent in range(L)
            if problem.owner[n] == p and A[n][:, latent].any()  # latents without a kernel say nothing of a vector
        ]
        np.testing.assert_allclose(x[p], gaussian_posterior(*prior, observed)[0], rtol=JITTER, atol=JITTER)


@every_case
def test_every_view_shrinks_the_covariance(name: str) -> None:
    problem = Problem(CASES[name].make(), LinearDecoder(), n_views=5)
    before = np.full(3, np.trace(prior_by_loops(problem.leaves, 7)[1]))
    for views in range(1, 6):
        cov = problem.fit(Gaussian(NOISE), 2, used=np.arange(15) < 3 * views)[1]
        traces = np.trace(cov, axis1=1, axis2=2)
        assert (traces < before - 1e-6).all()
        before = traces


def test_an_object_without_observed_values_keeps_the_prior() -> None:
    problem = Problem(CASES["two of one column"].make(), LinearDecoder())
    problem.y[problem.owner == 1] = np.nan
    x, cov = problem.fit(Gaussian(NOISE), steps=12)
    mean, prior_cov = prior_by_loops(problem.leaves, 7)
    np.testing.assert_allclose(x[1], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(cov[1], prior_cov, rtol=1e-9, atol=1e-12)
    assert (np.trace(cov, axis1=1, axis2=2)[[0, 2]] < 0.9 * np.trace(prior_cov)).all()


def test_objects_and_batches_do_not_mix() -> None:
    problem = Problem(CASES["learned * periodic"].make(), nn.Sequential(LinearDecoder(), nn.Tanh()))
    together = problem.fit(Gaussian(NOISE), 6, batch_size=5)
    for other in (problem.fit(Gaussian(NOISE), 6, batch_size=100), problem.fit(Gaussian(NOISE), 6, batch_size=1)):
        np.testing.assert_allclose(other[0], together[0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(other[1], together[1], rtol=1e-8, atol=1e-10)
    alone = problem.fit(Gaussian(NOISE), 6, used=problem.owner == 2)
    np.testing.assert_allclose(alone[0][2], together[0][2], rtol=1e-8, atol=1e-10)


def test_vectors_of_two_groups_share_what_the_samples_say() -> None:
    """Their posterior is one Gaussian over both: the covariance between them is not zero."""
    problem = Problem(CASES["two groups that read the column"].make(), LinearDecoder())
    assert [leaf.dim for leaf in problem.leaves] == [2, 3]
    _, cov = problem.fit(Gaussian(NOISE), steps=4)
    assert cov.shape == (3, 5, 5) and np.abs(cov[:, :2, 2:]).max() > 1e-3
