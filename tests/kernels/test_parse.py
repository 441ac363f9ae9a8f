"""Kernel expressions as text: what is written is read back, and nothing else is accepted or run."""

import pytest
import torch
from hypothesis import given

from gppvae.data.table import Table
from gppvae.kernels import RBF, Kernel, Learned, Linear, Matern, Periodic, Product, RationalQuadratic, Scale, Sum
from gppvae.kernels import parse_kernel as parse
from kernels.cases import ALL_KERNELS, Expression, bound, columns, expressions, write


def structure(kernel: Kernel) -> object:
    """The tree of types with what each node was given."""
    if isinstance(kernel, (Sum, Product)):
        return type(kernel).__name__, structure(kernel.left), structure(kernel.right)
    if isinstance(kernel, Scale):
        return "Scale", kernel.initial, structure(kernel.kernel)
    return type(kernel).__name__, kernel.columns(), kernel.text()


@given(expressions())
def test_text_is_read_back(tree: Expression) -> None:
    kernel = write(tree)
    again = parse(kernel.text())
    assert structure(again) == structure(kernel) and again.text() == kernel.text()
    bound(kernel)
    bound(again)
    assert again.state_dict().keys() == kernel.state_dict().keys()
    again.load_state_dict(kernel.state_dict())
    rows = Table(columns())
    torch.testing.assert_close(
        again.features(again.code(rows)).dense(), kernel.features(kernel.code(rows)).dense(), rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ALL_KERNELS)
def test_every_leaf_is_read_back(name: str) -> None:
    kernel = ALL_KERNELS[name].make()
    assert structure(parse(kernel.text())) == structure(kernel)


def test_all_arguments_survive_the_text() -> None:
    kernel = (
        0.25 * RBF("a", "b", lengthscale=2.0, fixed=True, max_anchors=9)
        + Matern("time of day", nu=0.5) * RationalQuadratic("c", alpha=3.0, lengthscale=0.1)
        + Periodic("it's", 24) * Learned('say "x"', 5, normalize=True)
    )
    again = parse(kernel.text())
    assert structure(again) == structure(kernel)
    assert [leaf.max_anchors for leaf in again.leaves()[:2]] == [9, 64]
    assert [leaf.fixed for leaf in again.leaves()[:2]] == [True, False]
    assert again.leaves()[2].base.alpha.item() == pytest.approx(3.0)


def test_the_nugget_survives_the_text() -> None:
    assert parse(RBF("a", jitter=1e-4).text()).jitter == 1e-4


def test_the_basis_survives_the_text() -> None:
    for kernel in (RBF("a", basis="hilbert"), Periodic("a", 2.0, basis="fourier"), Matern("a", basis="anchors")):
        assert parse(kernel.text()).basis == kernel.basis
    assert parse("RBF(a, basis=hilbert)").basis == "hilbert"


def test_bare_and_quoted_columns_are_the_same() -> None:
    assert (
        parse("Learned(person, 64) * FreeForm(pose)").text()
        == parse("Learned('person', dim=64)*FreeForm('pose')").text()
    )


def test_precedence_is_that_of_numbers() -> None:
    kernel = parse("Linear(a) + 2 * Linear(b) * Linear(c)")
    assert isinstance(kernel, Sum) and isinstance(kernel.right, Product) and isinstance(kernel.right.left, Scale)
    assert isinstance(parse("(Linear(a) + Linear(b)) * Linear(c)"), Product)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be an expression like"),
        ("RBF(time", "check brackets"),
        ("RBF", "use kernel names"),
        ("3", "got the number '3'; name a kernel"),
        ("2 * 3 * RBF(time)", "put the numbers of a product into one"),
        ("1 + RBF(time)", "a number can multiply a kernel, not be added"),
        ("RBF(time) - RBF(place)", "use kernel names"),
        ("RBF(time) ** 2", "use kernel names"),
        ("-1 * RBF(time)", "use kernel names"),
        ("True * RBF(time)", "use kernel names"),
        ("0 * RBF(time)", r"must be positive, got 0\.0"),
        ("1e999 * RBF(time)", "must be positive, got inf"),
        ("Perodic(angle, 360)", r"got 'Perodic'; did you mean Periodic\?"),
        ("rbf(time)", r"got 'rbf'; did you mean RBF\?"),
        ("Zzzzzz(time)", "known are Learned, FreeForm"),
        ("Learned()", "missing 1 required positional argument: 'column'"),
        ("Periodic(angle)", "missing 1 required positional argument: 'period'"),
        ("Constant(1)", "do not fit"),
        ("RBF(time, nu=1)", "unexpected keyword argument 'nu'"),
        ("Matern(time, nu=2)", r"nu of 0\.5, 1\.5 or 2\.5, got 2"),
        ("RBF([1])", "arguments are column names and numbers"),
        ("RBF(*time)", "arguments are column names and numbers"),
        ("RBF(time, **options)", "arguments are column names and numbers"),
        ("RBF(RBF(time))", "arguments are column names and numbers"),
        ("RBF(time).text()", "kernel names must be known"),
    ],
)
def test_other_text_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Learned(person, eight)", "dim.*eight"),
        ("Learned(person, 1e999)", "dim.*inf"),
        ("Learned(3)", "Learned.*column.*3"),
        ("Linear(3)", "Linear.*column.*3"),
        ("Categorical(3)", "Categorical.*column.*3"),
        ("Periodic(angle, month)", "period.*month"),
        ("RBF(time, lengthscale=long)", "lengthscale.*long"),
        ("RBF(time, max_anchors=2.5)", r"max_anchors.*2\.5"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_very_long_expression_is_refused_not_a_crash() -> None:
    with pytest.raises(ValueError, match="must be an expression like"):
        parse(" + ".join(["RBF(time)"] * 20_000))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir({path!r})",
        "RBF(__import__('os').mkdir({path!r}))",
        "RBF(time, lengthscale=__import__('os').mkdir({path!r}))",
        "(lambda: __import__('os').mkdir({path!r}))()",
        "[Linear(a) for _ in [__import__('os').mkdir({path!r})]][0]",
        "Linear.__init__.__globals__['np'].save({path!r}, 1)",
    ],
)
def test_no_text_is_run(text: str, tmp_path) -> None:
    path = tmp_path / "made"
    with pytest.raises(ValueError):
        parse(text.format(path=str(path)))
    assert list(tmp_path.iterdir()) == []


def test_learned_and_linear_read_their_columns_in_order() -> None:
    kernel = parse("Learned(b) * Linear(a, c) + Learned(b, 2)")
    assert kernel.columns() == ["b", "a", "c"]
    assert [type(leaf) for leaf in kernel.leaves()] == [Learned, Linear, Learned]
