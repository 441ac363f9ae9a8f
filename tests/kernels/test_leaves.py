"""Leaves at the table's edge: ids, missing columns, wrong values; priors and gradients of their parameters."""

import numpy as np
import pytest
import torch

from gppvae.data.table import Table
from gppvae.kernels import (
    RBF,
    Categorical,
    Constant,
    FreeForm,
    IdLeaf,
    InducingLeaf,
    Kernel,
    Leaf,
    Learned,
    Linear,
    Matern,
    NumericLeaf,
    Periodic,
    RationalQuadratic,
    Scale,
)
from gppvae.kernels.stationary import StationaryLeaf
from kernels.cases import bound, columns


def test_ids_of_any_type_are_one_id() -> None:
    kernel = Categorical("digit")
    kernel.bind(Table({"digit": [3, 10, 4]}))
    assert kernel.levels == ["10", "3", "4"]
    for same in ([3, 4], [3.0, 4.0], ["3", "4"], np.array([3, 4], dtype=np.uint8), np.array([3, "4"], dtype=object)):
        assert kernel.code(Table({"digit": same})).columns["digit (id)"].index.tolist() == [1, 2]


def test_codes_number_all_levels_whatever_the_table_holds() -> None:
    kernel = bound(FreeForm("pose"))
    rows = kernel.code(Table({"pose": [2, 2]}))
    torch.testing.assert_close(kernel.features(rows), kernel.factor(torch.tensor([2, 2])))


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [(Learned("person", 2), "add_objects"), (FreeForm("person"), "fit again"), (Categorical("person"), "add_objects")],
)
def test_an_unknown_id_is_named(kernel: Kernel, advice: str) -> None:
    bound(kernel)
    with pytest.raises(ValueError, match=rf"column 'person' .*\(4 of them\), got 'zoe'; .*{advice}"):
        kernel.code(Table({"person": ["ann", "zoe"]}))


def test_many_unknown_ids_are_counted() -> None:
    kernel = bound(Categorical("person"))
    with pytest.raises(ValueError, match=r"got '10', '11', '12', '13', '14' and 3 more"):
        kernel.code(Table({"person": range(10, 18)}))


@pytest.mark.parametrize(
    "kernel", [Categorical("a") + RBF("a (id)"), Linear("a", "b") * Linear("a x b")], ids=["id", "two columns"]
)
def test_columns_with_confusable_names_are_refused(kernel: Kernel) -> None:
    """Ids of "a" and numbers of "a (id)" would be one coded column; so would the pair a, b and "a x b"."""
    table = Table({"a": [2.0, 5.0], "a (id)": [0.1, 0.4], "b": [1.0, 3.0], "a x b": [7.0, 9.0]})
    with pytest.raises(ValueError, match="rename"):
        kernel.bind(table)


@pytest.mark.parametrize("kernel", [RBF("time"), Periodic("time", 3.0), Linear("time"), Matern("time")])
def test_unseen_numbers_are_accepted(kernel: Kernel) -> None:
    bound(kernel)
    rows = kernel.code(Table({"time": [123.456, -1e6]}))
    assert torch.isfinite(kernel.features(rows)).all() and torch.isfinite(kernel.residual(rows)).all()


@pytest.mark.parametrize("kernel", [RBF("tiem"), Linear("tiem"), Categorical("tiem"), RBF("tiem") * Constant()])
def test_a_missing_column_is_named_with_the_nearest(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match=r"a column 'tiem', got columns .*; did you mean 'time'\?"):
        bound(kernel)


def test_nan_in_a_numeric_column_is_an_error_with_its_row() -> None:
    table = Table({"time": [0.0, 1.0, np.nan, np.inf]})
    with pytest.raises(ValueError, match=r"column 'time' must be finite, got nan in row 2 \(2 such rows\)"):
        RBF("time").bind(table)


def test_a_missing_id_is_an_error_with_its_row() -> None:
    for values in (["a", None], [1.0, np.nan]):
        with pytest.raises(ValueError, match=r"column 'person' must name an id .* row 1 \(1 such rows\)"):
            Learned("person").bind(Table({"person": values}))


def test_text_in_a_numeric_column_points_to_id_kernels() -> None:
    with pytest.raises(ValueError, match=r"column 'person' must be numeric, .* use Learned, FreeForm or Categorical"):
        bound(RBF("person"))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: Learned("p", 0), "dim between 1 and 4096, got 0"),
        (lambda: Learned("p", 2.5), r"dim to be a whole number, got 2\.5"),
        (lambda: Linear(), "at least one column"),
        (lambda: RBF(), "RBF needs at least one column"),
        (lambda: RBF("t", lengthscale=0.0), r"lengthscale between 1e-30 and 1e\+30, got 0\.0"),
        (lambda: RBF("t", lengthscale=float("nan")), "lengthscale to be a finite number, got nan"),
        (lambda: RBF("t", max_inducing=0), "max_inducing between 1 and 4096, got 0"),
        (lambda: RBF("t", basis="fourier"), "basis of auto, inducing, hilbert, got 'fourier'"),
        (lambda: Periodic("t", 1.0, basis="hilbert"), "basis of auto, inducing, fourier, got 'hilbert'"),
        (lambda: RationalQuadratic("t", basis="hilbert"), "one column needs a basis of auto, inducing, got"),
        (lambda: Matern("t", "u", basis="hilbert"), "2 columns needs a basis of auto, inducing, got"),
        (lambda: Matern("t", nu=1.0), r"nu of 0\.5, 1\.5 or 2\.5, got 1\.0"),
        (lambda: RationalQuadratic("t", alpha=-1.0), r"alpha between .*, got -1\.0"),
        (lambda: Periodic("t", 0.0), r"period between .*, got 0\.0"),
        (lambda: Periodic("t", 1.0, lengthscale=0.0), r"lengthscale between 1e-30 and 1e\+30, got 0\.0"),
        (lambda: 0.0 * RBF("t"), r"must be between 1e-12 and 1e\+12, got 0\.0"),
        (lambda: -2 * RBF("t"), r"must be between .*, got -2"),
        (lambda: RBF("t", jitter=-1e-8), "jitter between 1e-12 and 1, got -1e-08"),
        (lambda: RBF("t", jitter=float("nan")), "jitter to be a finite number, got nan"),
        (lambda: Learned("p", 10**9), "dim between 1 and 4096, got 1000000000"),
        (lambda: Learned("p", 10**400), "dim between 1 and 4096, got a number of about 400 digits"),
        (lambda: RBF("t", max_inducing=10**9), "max_inducing between 1 and 4096, got 1000000000"),
        (lambda: RBF("t", lengthscale=1e-300), r"lengthscale between .*, got 1e-300"),
        (lambda: RBF("t", lengthscale=10**400), "lengthscale to be a finite number, got a number of about 400 digits"),
        (lambda: Periodic("t", 1e300), r"period between .*, got 1e\+300"),
        (lambda: RBF("t\ud800"), r"columns to be valid text, got 't\\ud800'"),
        (lambda: 1e300 * RBF("t"), r"must be between 1e-12 and 1e\+12, got 1e\+300"),
        (lambda: 10**400 * RBF("t"), "got a number of about 400 digits"),
        (lambda: float("nan") * RBF("t"), "must be between .*, got nan"),
        (lambda: float("inf") * RBF("t"), "must be between .*, got inf"),
    ],
)
def test_wrong_arguments_are_explained(write, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: RBF("t", fixed="abc"), "RBF needs fixed to be True or False, got 'abc'; write for example fixed=True"),
        (lambda: RBF("t", fixed=1), "fixed to be True or False, got 1"),
        (lambda: Learned("p", normalize=None), "normalize to be True or False, got None"),
        (lambda: Learned("p", "8"), "Learned needs dim to be a whole number, got '8'; write for example dim=8"),
        (lambda: Learned("p", True), "dim to be a whole number, got True"),
        (lambda: RBF("t", lengthscale="long"), "lengthscale to be a finite number, got 'long'"),
        (lambda: RBF("t", lengthscale=True), "lengthscale to be a finite number, got True"),
        (lambda: Periodic("t", None), "period to be a finite number, got None"),
        (lambda: RBF(3), r"RBF needs columns to be valid text, got 3; write for example RBF\('time'\)"),
        (lambda: RBF("t", basis=3), "basis to be valid text, got 3; write for example basis='auto'"),
    ],
)
def test_arguments_of_the_wrong_type_are_explained(write, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        write()


def test_numbers_of_numpy_are_numbers() -> None:
    kernel = np.float32(0.5) * Learned("p", np.int64(3), normalize=np.bool_(True)) * RBF("t", lengthscale=np.float32(2))
    assert kernel.text() == "0.5 * Learned('p', dim=3, normalize=True) * RBF('t', lengthscale=2.0)"
    assert (np.float64(2.0) * RBF("t")).text() == (RBF("t") * np.int64(2)).text() == "2.0 * RBF('t')"
    assert Learned("p", 4.0).dim == 4


@pytest.mark.parametrize("size", [1e-40, 1e200, 1e300])
@pytest.mark.parametrize("kernel", [RBF("t"), Linear("t"), Matern("u", "t", max_inducing=2)])
def test_columns_in_extreme_units_are_refused(kernel: Kernel, size: float) -> None:
    """Their squares overflow or vanish, and length scales would be 0 or infinite."""
    with pytest.raises(
        ValueError, match=r"is between 1e-30 and 1e\+30, got .* in column 't'; use another unit"
    ) as caught:
        kernel.bind(Table({"t": np.array([1.0, 2.0, 4.0]) * size, "u": [1.0, 2.0, 3.0]}))
    assert "\n" not in str(caught.value)


def test_a_covariance_that_cannot_be_factorised_is_explained() -> None:
    kernel = bound(RBF("time", lengthscale=1.0))
    kernel.jitter = -2.0
    with pytest.raises(torch.linalg.LinAlgError, match=r"RBF\('time', lengthscale=1.0\) at its .* use a larger jitter"):
        kernel.factor(kernel.inducing)


def test_interfaces_cannot_be_instantiated() -> None:
    for interface in (Kernel, Leaf, IdLeaf, NumericLeaf, InducingLeaf, StationaryLeaf):
        with pytest.raises(TypeError, match="abstract"):
            interface()


def test_only_kernels_and_numbers_compose() -> None:
    with pytest.raises(TypeError):
        RBF("t") + 1.0
    with pytest.raises(TypeError):
        RBF("t") * "2"
    with pytest.raises(TypeError):
        True * RBF("t")


def test_a_number_on_either_side_scales() -> None:
    rows = Table(columns())
    for kernel in (3.0 * Constant(), Constant() * 3):
        assert isinstance(kernel, Scale)
        coded = kernel.code(rows)
        torch.testing.assert_close(kernel.gram(coded, coded), torch.full((14, 14), 3.0, dtype=torch.float64))


def test_neg_log_prior_is_half_the_squares_of_learned_vectors() -> None:
    left, right = Learned("person", 3), Learned("pose", 2)
    kernel = bound(2.0 * left * Periodic("angle", 360) + right * Learned("person", 2, normalize=True))
    expected = 0.5 * (np.sum(left.x.detach().numpy() ** 2) + np.sum(right.x.detach().numpy() ** 2))
    np.testing.assert_allclose(kernel.neg_log_prior().item(), expected, rtol=1e-12)
    assert bound(Constant()).neg_log_prior().item() == 0.0


def test_fixed_hyperparameters_get_no_gradient() -> None:
    kernel = bound(RBF("time", lengthscale=0.7, fixed=True) * Matern("place"))
    assert [name for name, p in kernel.named_parameters() if p.requires_grad] == ["right.base.raw_lengthscale"]


def test_binding_is_repeatable_by_generator() -> None:
    def start(seed: int) -> torch.Tensor:
        kernel = Learned("person", 3)
        kernel.bind(Table(columns()), torch.Generator().manual_seed(seed))
        return kernel.x

    assert torch.equal(start(1), start(1)) and not torch.equal(start(1), start(2))


def test_given_values_are_kept_to_the_last_digit() -> None:
    """A period that is off in its eighth digit is off by a phase after many periods."""
    kernel = Periodic("t", 365.2425, lengthscale=0.7)
    assert kernel.base.period_length.item() == pytest.approx(365.2425, rel=1e-13)
    assert kernel.base.lengthscale.item() == pytest.approx(0.7, rel=1e-13)
    assert RationalQuadratic("t", alpha=0.3).base.alpha.item() == pytest.approx(0.3, rel=1e-13)


def test_the_period_is_not_learned_and_the_length_scale_is() -> None:
    kernel = bound(Periodic("angle", 360))
    assert [name for name, p in kernel.named_parameters() if p.requires_grad] == ["base.raw_lengthscale"]


@pytest.mark.parametrize(
    "write",
    [
        lambda: 2.0 * Learned("person", 2) * Periodic("angle", 360),
        lambda: FreeForm("pose") + 0.5 * RBF("time", lengthscale=1.0) * Linear("place"),
        lambda: Matern("place", nu=1.5, lengthscale=2.0) * Learned("pose", 2, normalize=True),
        lambda: RationalQuadratic("place", lengthscale=1.5) * RBF("time", lengthscale=0.7),
        lambda: RBF("time", "place") + Matern("place", nu=1.5, lengthscale=2.0, basis="hilbert"),
        lambda: Periodic("angle", 360, lengthscale=0.6, basis="fourier") * RBF("time", basis="hilbert"),
    ],
)
def test_gradients_of_all_parameters_by_differences(write) -> None:
    """d/dtheta of a fixed contraction of V V', residual and diag, against central differences."""
    kernel = bound(write())
    rows = kernel.code(Table(columns(6, seed=3)))
    mix = torch.randn(6, 6, dtype=torch.float64)

    def value() -> torch.Tensor:
        V = kernel.features(rows)
        return (mix * (V @ V.T)).sum() + (mix[0] * (kernel.residual(rows) + kernel.diag(rows))).sum()

    value().backward()
    for name, parameter in kernel.named_parameters():
        if not parameter.requires_grad:
            continue
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            start, step = float(flat[i]), 1e-5
            sides = []
            for shifted in (start + step, start - step):
                flat[i] = shifted
                sides.append(value().item())
            flat[i] = start
            difference = (sides[0] - sides[1]) / (2 * step)
            assert abs(difference - float(parameter.grad.view(-1)[i])) < 1e-4 * max(1.0, abs(difference)), name


@pytest.mark.parametrize("given", [False, True])
def test_steps_in_the_length_scale_do_not_depend_on_the_unit_of_a_large_column(given: bool) -> None:
    """Adam on a dense GP likelihood: in metres, kilometres or Unix seconds it moves by the same factor."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 60.0, 40))
    K = np.exp(-0.5 * (x[:, None] - x) ** 2 / 2.0**2) + 0.01 * np.eye(40)
    y = torch.from_numpy(np.linalg.cholesky(K) @ rng.normal(size=(40, 3)))
    found = []
    for unit in (1.0, 1e3, 1e9):
        table = Table({"x": x * unit})
        kernel = RBF("x", lengthscale=15.0 * unit if given else None, basis="inducing")
        kernel.bind(table)
        rows, optimizer = kernel.code(table), torch.optim.Adam(kernel.parameters(), lr=0.03)
        for _ in range(100):
            optimizer.zero_grad()
            C = kernel.gram(rows, rows) + 0.01 * torch.eye(40, dtype=torch.float64)
            loss = (y * torch.linalg.solve(C, y)).sum() + 3.0 * torch.logdet(C)
            loss.backward()
            optimizer.step()
        found.append(kernel.base.lengthscale.item() / unit)
    assert found[0] < 6.0  # from 15 or 17 towards 2
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


def test_kernels_saved_before_length_scales_had_units_keep_theirs() -> None:
    table = Table({"x": [0.0, 700.0, 90.0]})
    kernel, again, bound = (RBF("x", lengthscale=40.0) for _ in range(3))
    kernel.bind(table)
    old = {name: value for name, value in kernel.state_dict().items() if not name.endswith(".unit")}
    assert len(old) < len(kernel.state_dict())
    old["base.raw_lengthscale"] = torch.full((1, 1), 25.0, dtype=torch.float64)  # softplus(25) = 25
    again.restore(kernel.extra_state(), old)
    assert again.state_dict().keys() == old.keys()
    bound.bind(table)  # as a resumed fit does before it reads the checkpoint
    for one in (again, bound):
        one.load_state_dict(old)
        np.testing.assert_allclose(one.base.lengthscale.item(), 25.0, rtol=1e-9)
