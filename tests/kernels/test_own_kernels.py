"""Kernels written outside the package, as a user would: the page that says how, and what the bases do for them."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gppvae.data.table import Table
from gppvae.estimator.kernel_summary import learned_words
from gppvae.kernels import (
    RBF,
    Categorical,
    IdLeaf,
    InducingLeaf,
    Kernel,
    Leaf,
    Learned,
    NumericLeaf,
    own_classes,
    parse_kernel,
)
from kernels.cases import columns, new_columns

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "kernel.md"


class Wave(NumericLeaf):
    """k(a, b) = cos(w (a - b)), two features."""

    rank = 2

    def __init__(self, column: str, frequency: float = 1.0) -> None:
        super().__init__(column)
        self.log_frequency = nn.Parameter(torch.tensor(frequency, dtype=torch.float64).log())

    def factor(self, values: Tensor) -> Tensor:
        angle = values * self.log_frequency.exp()
        return torch.cat([angle.cos(), angle.sin()], dim=1)


class Cauchy(InducingLeaf):
    """k(a, b) = (1 + a^2)(1 + b^2) / (1 + |a - b|^2) over any number of columns; nothing but the covariance."""

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        size = (1.0 + a.square().sum(1, keepdim=True)) * (1.0 + b.square().sum(1))
        return size / (1.0 + (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(2))


class Effect(IdLeaf):
    """k(p, p') = w_p'w_p' with w made only once the levels are known."""

    def __init__(self, column: str, size: int, *, start: float = 1.0) -> None:
        super().__init__(column)
        self.size, self.start = size, start
        self.w = nn.Parameter(torch.zeros(0, size, dtype=torch.float64))

    @property
    def rank(self) -> int:
        return self.size

    def create(self, generator: torch.Generator | None) -> None:
        w = torch.randn(len(self.levels), self.size, generator=generator, dtype=torch.float64)
        self.w = nn.Parameter(self.start + w)

    def factor(self, values: Tensor) -> Tensor:
        return self.w[values]


def wave(a: dict[str, Any], b: dict[str, Any]) -> float:
    return float(np.cos(0.7 * (a["time"] - b["time"])))


def cauchy(names: tuple[str, ...]) -> Any:
    def k(a: dict[str, Any], b: dict[str, Any]) -> float:
        sizes = [1.0 + sum(row[name] ** 2 for name in names) for row in (a, b)]
        return sizes[0] * sizes[1] / (1.0 + sum((a[name] - b[name]) ** 2 for name in names))

    return k


def rows_of(table: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [{name: values[n] for name, values in table.items()} for n in range(len(table["time"]))]


def gram(k: Any, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> np.ndarray:
    return np.array([[k(x, y) for y in b] for x in a])


@pytest.mark.parametrize(
    ("kernel", "definition"),
    [
        (Wave("time", frequency=0.7), wave),
        (Cauchy("place"), cauchy(("place",))),
        (Cauchy("time", "place"), cauchy(("time", "place"))),
        (2.0 * Wave("time", 0.7) * Cauchy("place"), lambda a, b: 2.0 * wave(a, b) * cauchy(("place",))(a, b)),
        (
            Cauchy("time") * Categorical("person") + Wave("time", 0.7),
            lambda a, b: cauchy(("time",))(a, b) * (a["person"] == b["person"]) + wave(a, b),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Kernel) else "definition",  # no addresses: processes must agree
)
def test_covariance_and_features_are_those_of_the_definition(kernel: Kernel, definition: Any) -> None:
    kernel.bind(Table(columns()))
    rows, new = kernel.code(Table(columns())), kernel.code(Table(new_columns()))
    K = gram(definition, rows_of(columns()), rows_of(columns()))
    with torch.no_grad():
        V, V_new = kernel.features(rows).numpy(), kernel.features(new).numpy()
        assert V.shape == (len(rows), kernel.rank) and kernel.carries_training_variance
        np.testing.assert_allclose(kernel.gram(rows, rows), K, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(V @ V.T, K, rtol=0, atol=1e-6 * K.max())
        cross = gram(definition, rows_of(new_columns()), rows_of(columns()))
        np.testing.assert_allclose(V_new @ V.T, cross, rtol=0, atol=1e-5 * np.abs(cross).max())
        K_new = np.diag(gram(definition, rows_of(new_columns()), rows_of(new_columns())))
        np.testing.assert_allclose(kernel.diag(new).numpy(), K_new, rtol=1e-9)
        np.testing.assert_allclose((V_new**2).sum(1) + kernel.residual(new).numpy(), K_new, rtol=1e-6)


def test_many_values_share_inducing_points() -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, 1000)
    kernel = Cauchy("x", max_inducing=12)
    kernel.bind(Table({"x": x}))
    rows = kernel.code(Table({"x": x}))
    assert kernel.rank == 12 and not kernel.complete and "12 inducing points at k-means" in kernel.describe_features()
    with torch.no_grad():
        V, K = kernel.features(rows), kernel.gram(rows, rows)
        assert (V @ V.T - K).abs().max() < 1e-3 * K.max()
        torch.testing.assert_close(kernel.diag(rows), K.diagonal(), rtol=1e-12, atol=0)


def test_gradients_reach_parameters_of_own_classes() -> None:
    kernel = Wave("time") * Effect("person", 2) + Cauchy("place")
    kernel.bind(Table(columns()))
    kernel.features(kernel.code(Table(columns()))).sum().backward()
    wanted = {"left.left.log_frequency", "left.right.w"}
    assert {name for name, p in kernel.named_parameters() if p.grad is not None and p.grad.abs().max() > 0} == wanted


# -- text


class Odd(NumericLeaf):
    """Arguments in every position that Python has."""

    rank = 1

    def __init__(
        self, power: int, *columns: str, sign: float = 1.0, words: list[str] | None = None, **more: Any
    ) -> None:
        super().__init__(*columns)

    def factor(self, values: Tensor) -> Tensor:
        return values[:, :1]


class Labelled(Effect):
    def __init__(self, column: str, size: int, label: str) -> None:
        super().__init__(column, size)


def test_text_is_the_call() -> None:
    for text in (
        "Wave('time')",
        "Wave('time', frequency=2.0)",
        "Cauchy('a', 'b', max_inducing=5)",
        "Effect('p', size=3, start=2.0)",
        "Odd(3, 'a', 'b', sign=-1.0, words=['x'], other=2)",
        "Learned('p', dim=4) * Wave('time') + 0.5 * Cauchy('a')",
    ):
        kernel = eval(text)
        assert kernel.text() == repr(kernel) == text
    assert Effect(size=3, column="p").text() == "Effect('p', size=3)"
    assert Labelled("p", 3, "blue").text() == "Labelled('p', size=3, label='blue')"
    assert Wave("time", np.float32(2)).text() == "Wave('time', frequency=2.0)"


def test_declared_types_are_checked_for_own_classes_too() -> None:
    with pytest.raises(TypeError, match="Wave needs frequency to be a finite number, got 'fast'"):
        Wave("time", "fast")
    with pytest.raises(ValueError, match=r"Effect needs size to be a whole number, got 2\.5"):
        Effect("p", 2.5)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
        Effect("p")


def test_any_of_several_declared_types_will_do() -> None:
    class Free(Wave):
        def __init__(
            self, column: str, a: int | float = 1, b: float | Tensor = 1.0, c: str | int | None = None
        ) -> None:
            super().__init__(column)

    assert Free("t", 2.5, torch.ones(2), "x").arguments["a"] == 2.5
    assert Free("t", 2, "what this class takes", 3).text() == "Free('t', a=2, b='what this class takes', c=3)"
    assert Free("t", c=None).text() == "Free('t', c=None)"
    with pytest.raises(TypeError, match="Free needs c to be valid text or a whole number, got \\[1\\]"):
        Free("t", c=[1])
    with pytest.raises(ValueError, match="Free needs a to be a whole number or a finite number, got inf"):
        Free("t", float("inf"))


def test_classes_that_text_cannot_name_are_listed() -> None:
    impostor = type("RBF", (RBF,), {})
    assert own_classes(2.0 * RBF("t") * Learned("p") + Categorical("q")) == []
    assert own_classes(Wave("t")) == ["Wave"]
    assert own_classes(2.0 * (Wave("t") + RBF("t")) * Effect("p", 2) + Wave("u")) == ["Wave", "Effect"]
    assert own_classes(impostor("t")) == ["RBF"]
    with pytest.raises(ValueError, match="got 'Wave'"):
        parse_kernel(Wave("t").text())


# -- saving


def saved(kernel: Kernel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a model file holds of a kernel, through JSON."""
    extras = {name: leaf.extra_state() for name, leaf in kernel.named_modules() if isinstance(leaf, Leaf)}
    return json.loads(json.dumps(extras)), {key: value.clone() for key, value in kernel.state_dict().items()}


def loaded(kernel: Kernel, extras: dict[str, Any], tensors: dict[str, Tensor]) -> Kernel:
    for name, leaf in kernel.named_modules():
        if isinstance(leaf, Leaf):
            prefix = f"{name}." if name else ""
            leaf.restore(extras[name], {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)})
    kernel.load_state_dict(tensors)
    return kernel


def test_own_classes_are_saved_and_loaded_without_code_of_their_own() -> None:
    def write() -> Kernel:
        return 3.0 * Wave("time", 0.3) * Effect("person", 2) + Cauchy("place", max_inducing=3) * Learned("pose", 2)

    kernel = write()
    kernel.bind(Table(columns()), torch.Generator().manual_seed(5))
    before = torch.random.get_rng_state()
    twin = loaded(write(), *saved(kernel))
    assert torch.equal(torch.random.get_rng_state(), before)  # loading draws nothing from the global generator
    assert twin.rank == kernel.rank and twin.carries_training_variance is kernel.carries_training_variance is False
    rows, same = kernel.code(Table(new_columns())), twin.code(Table(new_columns()))
    assert torch.equal(twin.features(same), kernel.features(rows))
    assert torch.equal(twin.residual(same), kernel.residual(rows))
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in kernel.named_parameters()]


def test_restoring_keeps_what_is_not_learned() -> None:
    def write() -> Effect:
        leaf = Effect("person", 2)
        leaf.register_parameter("fixed", nn.Parameter(torch.zeros(0).double(), requires_grad=False))
        leaf.register_buffer("seen", None)
        return leaf

    kernel = write()
    kernel.bind(Table(columns()))
    kernel.fixed.data, kernel.seen = torch.ones(4).double(), torch.arange(3.0)
    twin = loaded(write(), *saved(kernel))
    assert torch.equal(twin.fixed, kernel.fixed) and torch.equal(twin.seen, kernel.seen)
    assert not twin.fixed.requires_grad and twin.w.requires_grad


def test_tensors_that_a_new_kernel_does_not_have_are_named() -> None:
    class Late(NumericLeaf):
        rank = 1

        def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
            self.register_buffer("mean", torch.tensor(table.numeric(self.columns_read).mean()))

        def factor(self, values: Tensor) -> Tensor:
            return values - self.mean

    kernel = Late("time")
    kernel.bind(Table(columns()))
    with pytest.raises(ValueError, match=r"Late must have the saved tensor 'mean', got none .* in __init__"):
        loaded(Late("time"), *saved(kernel))


# -- mistakes


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (lambda values: values[:, 0], r"Bad.factor must give float64 features of shape \(3, 1\) .* float64 of \(3,\)"),
        (lambda values: values.repeat(1, 2), r"shape \(3, 1\) .*, got float64 of \(3, 2\)"),
        (lambda values: values.float(), r"got float32 of \(3, 1\)"),
        (lambda values: values / 0.0, "must have finite features, got NaN or infinity"),
    ],
)
def test_a_wrong_factor_is_explained_when_bound(factor: Any, message: str) -> None:
    Bad = type("Bad", (NumericLeaf,), {"rank": 1, "factor": lambda self, values: factor(values)})
    with pytest.raises(ValueError, match=message) as caught:
        Bad("time").bind(Table(columns()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (lambda a, b: (a - b[0]).exp(), r"Bad.covariance must give .* \(3, 2\) for .*, got float64 of \(3, 1\)"),
        (lambda a, b: (a - b.T).float(), r"got float32 of \(3, 2\)"),
        (lambda a, b: -(a @ b.T), r"must be positive definite, .* use a larger jitter"),
        (lambda a, b: a - b.T, r"must be positive definite"),
    ],
)
def test_a_wrong_covariance_is_explained_when_bound(covariance: Any, message: str) -> None:
    Bad = type("Bad", (InducingLeaf,), {"covariance": lambda self, a, b: covariance(a, b)})
    with pytest.raises(ValueError, match=message) as caught:
        Bad("time").bind(Table(columns()))
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match=r"abstract .*factor"):
        type("Bad", (NumericLeaf,), {"rank": 1})("time")
    with pytest.raises(TypeError, match=r"abstract .*covariance"):
        type("Bad", (InducingLeaf,), {})("time")
    with pytest.raises(TypeError, match=r"abstract .*create"):
        type("Bad", (IdLeaf,), {"rank": 1, "factor": lambda self, values: values})("time")


# -- the page


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_kernels_of_the_page_are_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the page saves a model
    names: dict[str, Any] = {"__name__": "page"}
    code = blocks(PAGE)
    assert len(code) >= 5
    for block in code:
        exec(compile(block, str(PAGE), "exec"), names)
    kernel, table = names["kernel"], names["table"]
    ages, subjects = table["age"], table["subject"]
    x = dict(zip(kernel.leaves()[0].levels, kernel.leaves()[0].x.detach().numpy(), strict=True))
    for n, (age, subject) in enumerate(zip(ages, subjects, strict=True)):
        for m, (other, also) in enumerate(zip(ages, subjects, strict=True)):
            d = abs(age - other)
            wanted = x[subject] @ x[also] * np.exp(-d / 20.0) * np.cos(2 * np.pi * d / 12.0)
            wanted += 0.5 * (age * other + (age * other) ** 2)
            rows = names["rows"]
            assert kernel.gram(rows, rows)[n, m].item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    loading = copy.deepcopy(names["Loading"]("subject"))
    loading.bind(table)
    assert loading.features(loading.code(table)).tolist() == [[1.0], [1.0], [1.0]]


def test_own_kernel_says_what_it_learned() -> None:
    """By default its small parameters; in its own words where it has some."""

    class Spoken(Wave):
        def learned_numbers(self) -> dict[str, Tensor]:
            return {"frequency": self.log_frequency.exp()}

        def in_words(self, learned: dict[str, str]) -> list[str]:
            return ["a wave", *super().in_words(learned)]

    assert learned_words(Wave("time", 1.0)) == "log_frequency 0"
    assert learned_words(Spoken("time", 2.0)) == "a wave, frequency 2"
    assert learned_words(Spoken("time", 2.0), Spoken("time", 3.0)) == "a wave, frequency 2 to 3"
