"""Series of functions in place of inducing points, against the covariances they stand for."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from gppvae.data.table import Table
from gppvae.kernels import RBF, Matern, Periodic, RationalQuadratic, parse_kernel
from gppvae.kernels.series import LOST, SHORTER, Fourier, Sines, order_variances, plan_fourier, spectral_density
from gppvae.kernels.stationary import StationaryLeaf

PERIOD = 2.5
Write = Callable[..., StationaryLeaf]
KERNELS: dict[str, tuple[Write, Callable[[float], oracles.Covariance]]] = {
    "RBF": (lambda **o: RBF("x", **o), lambda length: oracles.rbf(("x",), length)),
    "Matern 1.5": (lambda **o: Matern("x", nu=1.5, **o), lambda length: oracles.matern(("x",), 1.5, length)),
    "Matern 2.5": (lambda **o: Matern("x", nu=2.5, **o), lambda length: oracles.matern(("x",), 2.5, length)),
    "Periodic": (lambda **o: Periodic("x", PERIOD, **o), lambda length: oracles.periodic("x", PERIOD, length)),
}


def values(n: int = 200, offset: float = 3.0, width: float = 4.0) -> np.ndarray:
    return np.random.default_rng(0).uniform(offset, offset + width, n)


def bound(kernel: StationaryLeaf, x: np.ndarray) -> StationaryLeaf:
    kernel.bind(Table({"x": x}))
    return kernel


@pytest.mark.parametrize("name", KERNELS)
@settings(deadline=None, max_examples=15)
@given(
    offset=st.floats(-1e3, 1e3), width=st.floats(1e-2, 1e3), start=st.floats(0.2, 1.0), change=st.floats(1 / SHORTER, 2)
)
def test_features_carry_the_covariance_at_all_planned_length_scales(
    name: str, offset: float, width: float, start: float, change: float
) -> None:
    """A length scale may change in training; what is then missing is at most LOST, and stays in the residual."""
    write, definition = KERNELS[name]
    unit = 1.0 if name == "Periodic" else width  # its length scale has no unit
    x = values(40, offset, width)
    kernel = bound(write(lengthscale=start * unit, max_inducing=400, **series_of(name)), x)
    length = start * unit * (change**2 if name == "Periodic" else change)
    kernel.base.lengthscale = torch.tensor(length, dtype=torch.float64)
    rows = kernel.code(Table({"x": x}))
    with torch.no_grad():
        V, residual = kernel.features(rows), kernel.residual(rows).numpy()
    table = [{"x": value} for value in x]
    K = oracles.gram(definition(length), table, table)
    got = (V @ V.T).numpy()
    assert np.abs(got - K).max() < 1.3 * LOST
    np.testing.assert_allclose(got.diagonal() + residual, 1.0, atol=1e-3 * LOST)


def series_of(name: str) -> dict[str, str]:
    return {"basis": "fourier" if name == "Periodic" else "hilbert"}


@pytest.mark.parametrize("name", KERNELS)
def test_more_functions_bring_the_covariance_itself(name: str) -> None:
    """Shrinking the planned range by hand: a wide interval and many functions leave nothing out."""
    write, definition = KERNELS[name]
    x = values(25, width=2.0)
    kernel = bound(write(lengthscale=0.8, **series_of(name)), x)
    assert kernel.series is not None
    nu = getattr(kernel, "nu", None)
    kernel.series = Fourier(101, PERIOD) if name == "Periodic" else Sines(4000, float(x.mean()), 12.0, nu)
    rows = kernel.code(Table({"x": x}))
    V = kernel.features(rows).detach().numpy()
    table = [{"x": value} for value in x]
    np.testing.assert_allclose(V @ V.T, oracles.gram(definition(0.8), table, table), atol=1e-8)


@pytest.mark.parametrize("nu", [None, 1.5, 2.5])
@pytest.mark.parametrize("w", [0.0, 0.4, 3.0])
def test_the_spectral_density_is_the_fourier_transform(nu: float | None, w: float) -> None:
    length = 1.3
    k = oracles.rbf(("x",), length) if nu is None else oracles.matern(("x",), nu, length)
    want, _ = scipy.integrate.quad(lambda d: 2 * k({"x": d}, {"x": 0.0}) * np.cos(w * d), 0.0, 60.0, limit=400)
    got = spectral_density(torch.tensor(w, dtype=torch.float64), torch.tensor(length, dtype=torch.float64), nu)
    assert float(got) == pytest.approx(want, rel=1e-7)


@pytest.mark.parametrize("a", [1e-6, 0.3, 1.0, 40.0, 300.0])
def test_orders_of_a_periodic_kernel_are_bessel_functions(a: float) -> None:
    orders = np.arange(12 + int(2.6 * a**0.5))  # about as many as are planned
    got = order_variances(torch.tensor(a, dtype=torch.float64), len(orders) - 1).numpy()
    want = scipy.special.ive(orders, a) * np.where(orders == 0, 1.0, 2.0)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_outside_its_interval_a_kernel_knows_nothing() -> None:
    kernel = bound(RBF("x"), values())
    assert kernel.series is not None
    end = kernel.series.centre + kernel.series.half_width
    rows = kernel.code(Table({"x": [end, end + 0.3, end + 1e6, -1e6]}))
    assert kernel.features(rows).abs().max().item() < 1e-12
    np.testing.assert_allclose(kernel.residual(rows).detach().numpy(), 1.0)


# -- the choice


@pytest.mark.parametrize(
    ("kernel", "n", "words"),
    [
        (RBF("x"), 64, "64 inducing points at its distinct values"),
        (RBF("x"), 65, "functions of a hilbert series"),
        (Matern("x"), 500, "functions of a hilbert series"),
        (Matern("x", nu=0.5), 500, "128 inducing points at k-means centres"),  # its spectrum has a long tail
        (RBF("x", lengthscale=0.01), 500, "500 inducing points at its distinct values"),
        (RBF("x", lengthscale=0.01, max_inducing=64), 500, "64 inducing points at k-means centres"),
        (RBF("x", lengthscale=0.1), 500, "functions of a hilbert series"),
        (Periodic("x", 2.0), 500, "17 functions of a fourier series"),
        (RationalQuadratic("x"), 500, "64 inducing points at k-means centres"),
        (RBF("x", basis="inducing"), 500, "64 inducing points at k-means centres"),
        (RBF("x", basis="hilbert"), 3, "functions of a hilbert series"),
        (Matern("x", nu=0.5, basis="hilbert", max_inducing=30), 500, "30 functions of a hilbert series"),
        (Periodic("x", 2.0, basis="fourier", max_inducing=6), 500, "6 functions of a fourier series"),
    ],
)
def test_the_basis_with_fewest_features_is_chosen(kernel: StationaryLeaf, n: int, words: str) -> None:
    bound(kernel, values(n))
    assert words in kernel.describe_features()
    rows = kernel.code(Table({"x": values(n)}))
    assert kernel.features(rows).shape == (n, kernel.rank)
    assert kernel.carries_training_variance == ("distinct values" in words)


def test_a_fixed_length_scale_needs_fewer_functions() -> None:
    assert bound(RBF("x", fixed=True), values()).rank < 0.5 * bound(RBF("x"), values()).rank


@pytest.mark.parametrize("kernel", [RBF("x"), Matern("x", nu=1.5), Periodic("x", 2.0), RationalQuadratic("x")])
def test_a_series_survives_saving(kernel: StationaryLeaf) -> None:
    """Also to a kernel that was bound to other values before."""
    bound(kernel, values(500))
    twin = parse_kernel(kernel.text())
    bound(twin, values(10, offset=-50.0))
    twin.restore(json.loads(json.dumps(kernel.extra_state())), kernel.state_dict())
    twin.load_state_dict(kernel.state_dict())
    assert twin.describe_features() == kernel.describe_features() and twin.complete is False
    rows = kernel.code(Table({"x": [3.3, 4.0, 1e4]}))
    assert torch.equal(twin.features(rows), kernel.features(rows))
    assert torch.equal(twin.residual(rows), kernel.residual(rows))


def test_values_for_reports_are_spread_over_the_training_values() -> None:
    kernel, x = bound(RBF("x"), values(500)), np.sort(values(500))
    assert kernel.inducing.shape == (0, 1) and kernel.shown_values.shape == (64, 1)
    assert bound(bound(RBF("x"), x[:5]), x).inducing.shape == (0, 1)  # also when bound to few values before
    shown = kernel.shown_values[:, 0].numpy()
    assert set(shown) <= set(x) and shown[0] == x[0] and shown[-1] == x[-1] and (np.diff(shown) > 0).all()


def test_orders_are_not_counted_beyond_the_limit() -> None:
    """A series for l = 1e-30 would have about 1e15 of them, and SciPy's Bessel functions give up before."""
    for shortest in (1e-6, 1e-12, 1e-30):
        assert plan_fourier(1.0, shortest, 64).n == 65
    assert plan_fourier(1.0, 0.5, 64).n == plan_fourier(1.0, 0.5, 10**6).n < 10


@pytest.mark.parametrize("lengthscale", [1e-30, 1e-9, 1e30])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("asked", [False, True])
def test_extreme_length_scales_neither_hang_nor_overflow(name: str, lengthscale: float, asked: bool) -> None:
    kernel = bound(KERNELS[name][0](lengthscale=lengthscale, **(series_of(name) if asked else {})), values(500))
    rows = kernel.code(Table({"x": values(20)}))
    V = kernel.features(rows)
    assert kernel.rank <= 1024 and V.isfinite().all()
    residual = kernel.residual(rows)
    assert (residual >= 0).all()
    (V.sum() + residual.sum()).backward()
    assert all(p.grad.isfinite().all() for p in kernel.parameters() if p.grad is not None)
