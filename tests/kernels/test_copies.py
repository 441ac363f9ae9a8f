"""Deep copies of kernels, bound or not: the same covariance, and nothing shared with the original."""

import copy

import pytest
import torch
from hypothesis import given

from gppvae.data.table import Table
from gppvae.kernels import RBF, Kernel, Learned, Matern
from gppvae.kernels.base import Leaf
from kernels.cases import ALL_KERNELS, Expression, bound, columns, expressions, write

TABLE = Table(columns())


def check_independent(kernel: Kernel, twin: Kernel) -> None:
    own = {id(module) for module in twin.modules()}
    assert all(id(leaf) in own for term in twin.terms() for leaf in (*term.leaves, *term.scales))
    assert all(id(leaf) in own for leaf in twin.leaves())
    assert own.isdisjoint({id(module) for module in kernel.modules()})
    theirs = {tensor.data_ptr() for tensor in kernel.state_dict().values() if tensor.numel()}
    assert theirs.isdisjoint({tensor.data_ptr() for tensor in twin.state_dict().values() if tensor.numel()})


@given(expressions())
def test_a_copy_of_a_bound_kernel_is_independent(tree: Expression) -> None:
    kernel = bound(write(tree))
    rows = kernel.code(TABLE)
    before = kernel.features(rows).detach().clone()  # whatever a kernel keeps, it keeps now
    kernel.residual(rows).sum()
    twin = copy.deepcopy(kernel)
    assert twin.text() == kernel.text()
    torch.testing.assert_close(twin.features(rows), before, rtol=0, atol=0)
    check_independent(kernel, twin)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5).add_(0.1)
    torch.testing.assert_close(kernel.features(rows), before, rtol=0, atol=0)
    if any(parameter.requires_grad for parameter in twin.parameters()):
        assert not torch.equal(twin.features(rows), before)


@pytest.mark.parametrize("name", ALL_KERNELS)
def test_a_copy_of_an_unbound_kernel_can_be_bound(name: str) -> None:
    kernel = ALL_KERNELS[name].make()
    kernel.leaves()
    twin = copy.deepcopy(kernel)
    check_independent(kernel, twin)
    kernel.bind(TABLE, torch.Generator().manual_seed(0))
    twin.bind(TABLE, torch.Generator().manual_seed(0))
    assert torch.equal(twin.features(twin.code(TABLE)), kernel.features(kernel.code(TABLE)))


def test_binding_a_copy_leaves_the_original_alone() -> None:
    kernel = bound(Learned("person", 2) * RBF("time"))
    twin = copy.deepcopy(kernel)
    twin.bind(Table({"person": ["x", "y"], "time": [0.0, 100.0]}))
    assert twin.leaves()[0].levels == ["x", "y"] and kernel.leaves()[0].levels == ["ann", "bob", "cem", "dua"]
    assert twin.rank == 4 and kernel.rank == 2 * len(set(columns()["time"]))


def test_a_leaf_that_is_used_twice_stays_one() -> None:
    shared = RBF("time")
    kernel = shared * Learned("person", 2) + shared
    twin = copy.deepcopy(kernel)
    leaves = twin.leaves()
    assert len(leaves) == 2 and twin.left.left is twin.right and twin.right is not shared


def test_a_part_can_be_copied() -> None:
    kernel = bound(2.0 * Matern("time") * Learned("person", 2))
    part = copy.deepcopy(kernel.left)
    check_independent(kernel, part)
    assert part.columns() == ["time"]


def test_a_replaced_part_is_used() -> None:
    """Terms are those of the kernel as it is, not as it was."""
    kernel = bound(RBF("time") + Learned("person", 2))
    kernel.leaves()
    kernel.left = bound(Matern("place"))
    assert kernel.columns() == ["place", "person"] and isinstance(kernel.leaves()[0], Leaf)


def test_binding_again_forgets_added_ids() -> None:
    leaf = bound(Learned("person", 2))
    leaf.add_levels(["new"], torch.zeros(1, 2).double(), torch.zeros(1, 2, 2).double())
    bound(leaf)
    assert leaf.n_added == 0 and len(leaf.levels) == len(leaf.x) == 4
