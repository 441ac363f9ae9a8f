"""Kernel expressions as text: "Learned(person, 64) * FreeForm(pose)". Parsed, never evaluated."""

from __future__ import annotations

import ast
import difflib
from typing import NoReturn

from gppvae.kernels.base import Constant, Kernel
from gppvae.kernels.columns import Categorical, FreeForm, Learned, Linear
from gppvae.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic

KERNELS: dict[str, type[Kernel]] = {
    cls.__name__: cls
    for cls in (Learned, FreeForm, Categorical, Linear, Constant, RBF, Matern, Periodic, RationalQuadratic)
}
EXAMPLE = "Learned(digit, 8) * Periodic(angle, period=360)"


def parse_kernel(text: str) -> Kernel:
    """Read a kernel expression: names of KERNELS, columns (quoted if they hold spaces), numbers, +, * and ().

    Raises:
        ValueError: the text is not such an expression; the message shows the offending piece.
    """
    try:
        kernel = _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise ValueError(
            f"the kernel must be an expression like {EXAMPLE!r}, got {shown!r}; check brackets and length"
        ) from None
    if not isinstance(kernel, Kernel):
        raise ValueError(f"the kernel must be an expression like {EXAMPLE!r}, got the number {text!r}; name a kernel")
    return kernel


def _read(node: ast.expr) -> Kernel | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.Call):
        return _read_call(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _read(node.left), _read(node.right)
        if not isinstance(left, Kernel) and not isinstance(right, Kernel):
            _reject(node, "put the numbers of a product into one")
        if isinstance(node.op, ast.Mult):
            return left * right
        if not (isinstance(left, Kernel) and isinstance(right, Kernel)):
            _reject(node, "a number can multiply a kernel, not be added; write for example 0.5 * Constant()")
        return left + right
    _reject(node, "use kernel names, +, *, numbers and brackets")


def _read_call(node: ast.Call) -> Kernel:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name not in KERNELS:
        known = {kernel.lower(): kernel for kernel in KERNELS}
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
        hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(KERNELS)}"
        raise ValueError(f"the kernel names must be known ones, got {name!r}; {hint}")
    args = [_argument(arg) for arg in node.args]
    if any(keyword.arg is None for keyword in node.keywords):
        _reject(node, "arguments are column names and numbers")
    options = {str(keyword.arg): _argument(keyword.value) for keyword in node.keywords}
    try:
        return KERNELS[name](*args, **options)
    except TypeError as error:
        reason = str(error).split("__init__() ")[-1]
        raise ValueError(f"the arguments of {ast.unparse(node)!r} do not fit: {reason}; see the kernels page") from None


def _argument(node: ast.expr) -> str | float | bool:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float)):
        return node.value
    _reject(node, "arguments are column names and numbers")


def _reject(node: ast.expr, hint: str) -> NoReturn:
    raise ValueError(f"the kernel must be an expression like {EXAMPLE!r}, got {ast.unparse(node)!r}; {hint}")
