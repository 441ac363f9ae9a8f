"""Ids that join a learned kernel after training: their vectors, the draws of them, and what stays as it was."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gppvae.data.table import Table
from gppvae.kernels import FreeForm, Kernel, Learned, Periodic
from gppvae.kernels.parse import parse_kernel
from gppvae.models.objects import learned_by_column, vectors_drawn

TRAINING = Table({"person": list("abc") * 2, "place": list("uuvvww"), "pose": [0, 1] * 3, "angle": [0.0, 90.0] * 3})


def bound(kernel: Kernel) -> Kernel:
    kernel.bind(TRAINING, torch.Generator().manual_seed(0))
    return kernel


def add(kernel: Kernel, column: str, ids: list[str], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Add ids with random vectors; all their entries side by side (P, J), and the covariance roots (P, J, J)."""
    generator = torch.Generator().manual_seed(seed)
    leaves = learned_by_column(kernel)[column]
    J = sum(leaf.dim for leaf in leaves)
    x = torch.randn(len(ids), J, generator=generator, dtype=torch.float64)
    root = torch.randn(len(ids), J, J, generator=generator, dtype=torch.float64)
    start = 0
    for leaf in leaves:
        leaf.add_levels(ids, x[:, start : start + leaf.dim], root[:, start : start + leaf.dim])
        start += leaf.dim
    return x, root


def vectors(kernel: Kernel, column: str) -> torch.Tensor:
    """Vectors of all leaves of a column, side by side."""
    return torch.cat([leaf.vectors().detach() for leaf in learned_by_column(kernel)[column]], dim=1)


KERNELS: dict[str, Callable[[], Kernel]] = {
    "one": lambda: Learned("person", 3) * Periodic("angle", 360),
    "two of one column": lambda: Learned("person", 2) * FreeForm("pose") + Learned("person", 1),
    "two columns": lambda: Learned("person", 2) * FreeForm("pose") + 0.5 * Learned("place", 2),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def test_leaves_are_grouped_by_column() -> None:
    kernel = bound(Learned("person", 2) * FreeForm("pose") + Learned("place", 1) + 0.3 * Learned("person", 4))
    found = learned_by_column(kernel)
    assert {column: [leaf.dim for leaf in leaves] for column, leaves in found.items()} == {
        "person": [2, 4],
        "place": [1],
    }
    assert learned_by_column(bound(FreeForm("pose"))) == {}


@every_kernel
def test_added_ids_come_last_and_are_coded(name: str) -> None:
    kernel = bound(KERNELS[name]())
    before = vectors(kernel, "person")
    assert all(leaf.n_added == 0 for leaf in learned_by_column(kernel)["person"])
    x, _ = add(kernel, "person", ["z", "aa"])
    for leaf in learned_by_column(kernel)["person"]:
        assert leaf.levels == ["a", "b", "c", "z", "aa"] and leaf.n_added == 2
        assert leaf.x.requires_grad
    assert torch.equal(vectors(kernel, "person"), torch.cat([before, x]))
    wanted = Table({"person": ["aa", "b", "z"], "place": ["u"] * 3, "pose": [0, 1, 0], "angle": [0.0, 1.0, 2.0]})
    column = kernel.code(wanted).columns["person (id)"]
    assert column.values[column.index].tolist() == [4, 1, 3]
    with pytest.raises(ValueError, match=r"\(5 of them\), got 'y'"):
        kernel.code(Table({**wanted.columns, "person": ["aa", "y", "z"]}))


@every_kernel
def test_an_added_id_has_the_covariance_of_its_vector(name: str) -> None:
    """The whole kernel at added rows is that of a kernel trained with those vectors."""
    kernel = bound(KERNELS[name]())
    x, _ = add(kernel, "person", ["d"])
    table = Table({"person": ["d", "a", "d"], "place": ["u", "v", "w"], "pose": [1, 0, 0], "angle": [10.0, 90.0, 90.0]})
    rows = kernel.code(table)
    twin = bound(KERNELS[name]())
    stolen, start = twin.code(Table({**table.columns, "person": ["c", "a", "c"]})), 0
    with torch.no_grad():
        for leaf in learned_by_column(twin)["person"]:
            leaf.x[2] = x[0, start : start + leaf.dim]
            start += leaf.dim
        torch.testing.assert_close(kernel.gram(rows, rows), twin.gram(stolen, stolen), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(kernel.diag(rows), twin.diag(stolen), rtol=1e-12, atol=1e-12)


@every_kernel
def test_draws_have_mean_x_and_covariance_root_root_transposed(name: str) -> None:
    kernel = bound(KERNELS[name]())
    trained = vectors(kernel, "person")
    x, root = add(kernel, "person", ["d", "e"])
    generator, draws = torch.Generator().manual_seed(1), []
    for _ in range(4000):
        with vectors_drawn(kernel, generator):
            now = vectors(kernel, "person")
        assert torch.equal(now[:3], trained)
        draws.append(now[3:])
    stacked = torch.stack(draws).numpy()
    for p in range(2):
        cov = root[p].numpy() @ root[p].numpy().T
        spread = np.sqrt(np.diag(cov))
        np.testing.assert_allclose(stacked[:, p].mean(0), x[p], rtol=0, atol=5.0 * spread.max() / np.sqrt(4000))
        scale = np.outer(spread, spread)
        np.testing.assert_allclose(np.cov(stacked[:, p].T) / scale, cov / scale, rtol=0, atol=0.1)
    both = np.concatenate([stacked[:, 0], stacked[:, 1]], axis=1)
    J = x.shape[1]
    assert np.abs(np.corrcoef(both.T)[:J, J:]).max() < 0.08  # objects are drawn apart from each other


def test_ids_added_to_two_columns_are_drawn_apart() -> None:
    kernel = bound(KERNELS["two columns"]())
    add(kernel, "person", ["d"])
    add(kernel, "place", ["x", "y"], seed=1)
    generator, draws = torch.Generator().manual_seed(1), []
    for _ in range(3000):
        with vectors_drawn(kernel, generator):
            draws.append(torch.cat([vectors(kernel, "person")[3], vectors(kernel, "place")[3:].flatten()]))
    correlation = np.corrcoef(torch.stack(draws).numpy().T)
    assert np.abs(correlation[:2, 2:]).max() < 0.09 and np.abs(correlation[2:4, 4:]).max() < 0.09


@every_kernel
def test_vectors_are_put_back_also_after_an_exception(name: str) -> None:
    kernel = bound(KERNELS[name]())
    add(kernel, "person", ["d"])
    before = vectors(kernel, "person")
    parameters = [leaf.x for leaf in learned_by_column(kernel)["person"]]
    with vectors_drawn(kernel, torch.Generator().manual_seed(0)):
        inside = vectors(kernel, "person")
    assert not torch.equal(inside, before) and torch.equal(vectors(kernel, "person"), before)
    with pytest.raises(ZeroDivisionError), vectors_drawn(kernel, torch.Generator().manual_seed(0)):
        assert torch.equal(vectors(kernel, "person"), inside)  # the same seed draws the same
        raise ZeroDivisionError
    assert torch.equal(vectors(kernel, "person"), before)
    assert all(leaf.x is x for leaf, x in zip(learned_by_column(kernel)["person"], parameters, strict=True))


def test_other_vectors_may_be_nested() -> None:
    leaf = bound(Learned("person", 2))
    one, two = torch.ones(3, 2, dtype=torch.float64), torch.full((3, 2), 2.0, dtype=torch.float64)
    with leaf.using(one):
        with leaf.using(two):
            assert torch.equal(leaf.vectors(), two) and torch.equal(leaf.factor(torch.tensor([1])), two[:1])
        assert torch.equal(leaf.vectors(), one)
    assert torch.equal(leaf.vectors(), leaf.x)


def test_only_added_ids_can_be_dropped() -> None:
    kernel = bound(KERNELS["two of one column"]())
    x, root = add(kernel, "person", ["d", "e", "f"])
    trained = vectors(kernel, "person")[:3]
    for leaf in learned_by_column(kernel)["person"]:
        leaf.drop_levels(["e", "a", "nobody"])
        assert leaf.levels == ["a", "b", "c", "d", "f"] and leaf.n_added == 2
    assert torch.equal(vectors(kernel, "person"), torch.cat([trained, x[[0, 2]]]))
    kept = torch.cat([leaf.added_root for leaf in learned_by_column(kernel)["person"]], dim=1)
    assert torch.equal(kept, root[[0, 2]])
    for leaf in learned_by_column(kernel)["person"]:
        leaf.drop_levels(["d", "f"])
        assert leaf.levels == ["a", "b", "c"] and leaf.n_added == 0
    assert torch.equal(vectors(kernel, "person"), trained)


def test_covariances_of_another_size_are_refused() -> None:
    leaf = bound(Learned("person", 2))
    add(leaf, "person", ["d"])
    with pytest.raises(ValueError, match="must keep its size"):
        leaf.add_levels(["e"], torch.zeros(1, 2).double(), torch.zeros(1, 2, 5).double())
    assert leaf.levels == ["a", "b", "c", "d"] and leaf.x.shape == (4, 2) and leaf.n_added == 1


@every_kernel
def test_added_ids_survive_saving(name: str) -> None:
    kernel = bound(KERNELS[name]())
    add(kernel, "person", ["d", "e"])
    tensors = {key: value.clone() for key, value in kernel.state_dict().items()}
    twin = parse_kernel(kernel.text())
    for (_, leaf), (path, other) in zip(kernel.named_modules(), twin.named_modules(), strict=True):
        if isinstance(leaf, (Learned, FreeForm, Periodic)):
            prefix = f"{path}." if path else ""
            own = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            other.restore(leaf.extra_state(), own)
    twin.load_state_dict(tensors)
    assert torch.equal(vectors(twin, "person"), vectors(kernel, "person"))
    for leaf, other in zip(learned_by_column(kernel)["person"], learned_by_column(twin)["person"], strict=True):
        assert other.levels == leaf.levels and other.n_added == 2
        assert torch.equal(other.added_root, leaf.added_root)
