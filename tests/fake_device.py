"""A device that is not the CPU, without one: tensors that compute on the CPU, say "lazy", and do not mix with others.

Under `fake_device()` a tensor made with `device="lazy"`, or moved there, is `Elsewhere`: numbers in memory, wrapped. An
operation of such a tensor with a plain one of the CPU is an error, as it is for CUDA, with the exceptions that CUDA
makes: single numbers, copies, and indices that lie on the CPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "lazy"
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class WrongDeviceError(RuntimeError):
    """An operation had tensors of both devices, or read numbers of the other device without moving them."""


class Elsewhere(torch.Tensor):
    """A tensor of the device; `inner` has its numbers."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Elsewhere":
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=NAME,
            requires_grad=False,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({tuple(self.shape)}, {self.dtype})"

    def new_tensor(self, data: Any, **options: Any) -> "Elsewhere":  # PyTorch would fill it on the CPU
        return Elsewhere(self.inner.new_tensor(data, **options))

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        lists = [torch.as_tensor(part, dtype=torch.int64) if isinstance(part, list) else part for part in parts]
        return super().__getitem__(tuple(lists))

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise WrongDeviceError("numbers of the device were read without moving them; call cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


@contextmanager
def fake_device() -> Iterator[str]:
    """The name of a device on which tensors can be made inside the block."""
    known = optimizer._get_fused_kernels_supported_devices()
    fused = mock.patch.object(optimizer, "_get_fused_kernels_supported_devices", lambda: [*known, NAME])
    slope = mock.patch.object(torch.func, "jvp", _jvp)
    with fused, slope, mock.patch.object(torch, "tensor", _tensor), _Mode():
        yield NAME


@torch.enable_grad()
def _jvp(
    function: Any, points: tuple[torch.Tensor], tangents: tuple[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.func.jvp by two backward passes, since forward derivatives do not see a tensor of one's own class."""
    (at,), (tangent,) = (point.detach().requires_grad_() for point in points), tangents
    value = function(at)
    weight = torch.zeros_like(value, requires_grad=True)
    (back,) = torch.autograd.grad(value, at, weight, create_graph=True)
    (found,) = torch.autograd.grad(back, weight, tangent)
    return value.detach(), found


def _tensor(data: Any, *, device: Any = None, make: Any = torch.tensor, **options: Any) -> torch.Tensor:
    """torch.tensor, which fills memory without asking a mode."""
    there = device is not None and torch.device(device).type == NAME
    found: torch.Tensor = make(data, device=None if there else device, **options)
    return Elsewhere(found) if there else found


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the numbers; its tensors lie where the inputs do, or where the call says."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there = any(isinstance(x, Elsewhere) for x in tensors)
    _check(func, args, tensors, there)
    asked = kwargs.get("device")
    if asked is not None:
        there = torch.device(asked).type == NAME
        kwargs = kwargs | {"device": torch.device("cpu") if there else asked}
    found = func(*_unwrapped(args), **_unwrapped(kwargs))
    if (func in COPIES and func is aten.copy_.default) or _in_place(func):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    return tree_map(lambda x: Elsewhere(x) if type(x) is torch.Tensor else x, found) if there else found


def _check(func: Any, args: Any, tensors: list[torch.Tensor], there: bool) -> None:
    if any(type(x) is torch.Tensor and x.device.type == NAME for x in tensors):
        raise AssertionError(f"{func} had a tensor without numbers, which PyTorch made past this class")
    if not there or func in COPIES:
        return
    wrong = [x for x in tensors if not isinstance(x, Elsewhere) and x.ndim > 0]
    if func in INDEXED and isinstance(args[0], Elsewhere):
        indices = [x for x in args[1] if x is not None]
        wrong = [x for x in wrong if not any(x is index for index in indices)]
    if wrong:
        shapes = [(tuple(x.shape), "device" if isinstance(x, Elsewhere) else "CPU") for x in tensors]
        raise WrongDeviceError(f"{func} had tensors of both devices: {shapes}")


def _in_place(func: Any) -> bool:
    arguments = func._schema.arguments
    written = arguments and arguments[0].alias_info is not None and arguments[0].alias_info.is_write
    return bool(written) and bool(func._schema.returns)


def _unwrapped(values: Any) -> Any:
    return tree_map(lambda x: x.inner if isinstance(x, Elsewhere) else x, values)
