"""Kernel expressions as text: "Learned(person, 64) * FreeForm(pose)". Parsed, never evaluated."""

from __future__ import annotations

import ast
import difflib
import warnings
from typing import NoReturn

from gppvae.data.words import one_line, shortened, shown
from gppvae.kernels.arguments import constructor_signature
from gppvae.kernels.base import MAX_PARTS, Kernel, Leaf, Product, Scale, Sum
from gppvae.kernels.ids import Categorical, FreeForm, Learned
from gppvae.kernels.numeric import Constant, Linear
from gppvae.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic

KERNELS: dict[str, type[Leaf]] = {
    cls.__name__: cls
    for cls in (Learned, FreeForm, Categorical, Linear, Constant, RBF, Matern, Periodic, RationalQuadratic)
}
EXAMPLE = "Learned(digit, 8) * Periodic(angle, period=360)"
MAX_CHARACTERS = 20_000


def parse_kernel(text: str) -> Kernel:
    """Read a kernel expression: names of KERNELS, columns (quoted if they hold spaces), numbers, +, * and ().

    Raises:
        ValueError: the text is not such an expression; the message shows the offending piece.
        TypeError: `text` is not text.

    Example:
        >>> from gppvae import parse_kernel
        >>> parse_kernel("RBF(age) + Learned('patient id', 4) * RBF(age)").columns()
        ['age', 'patient id']
        >>> parse_kernel("RBF(age) - 1")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: the kernel must be an expression like ... got 'RBF(age) - 1'; ...
    """
    if not isinstance(text, str):
        raise TypeError(f"the kernel must be text like {EXAMPLE!r}, got {shown(text)}; pass a kernel object as it is")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"the kernel must have at most {MAX_CHARACTERS} characters, got {len(text)}; write it in fewer parts"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on odd escapes in column names
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: lone surrogates, null characters
        raise ValueError(
            f"the kernel must be an expression like {EXAMPLE!r}, got {shown(text)}; check brackets and quotes"
        ) from None
    n_parts = sum(isinstance(node, ast.Call) for node in ast.walk(tree))
    if n_parts > MAX_PARTS:  # before recursion gets deep
        raise ValueError(f"a kernel may have at most {MAX_PARTS} parts, got {n_parts}; leave some out")
    try:
        kernel = _Reader(text.strip()).read(tree)
    except RecursionError:
        raise ValueError(
            f"the kernel must be an expression like {EXAMPLE!r}, got {shown(text)}; use fewer brackets"
        ) from None
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"the kernel must be an expression like {EXAMPLE!r}, got the number {shortened(text)}; name a kernel"
        )
    return kernel


def own_classes(kernel: Kernel) -> list[str]:
    """Names of the classes in an expression that `parse_kernel` does not know, each once.

    A saved model with such a kernel can only be loaded together with the kernel object.
    """
    nodes = [module for module in kernel.modules() if isinstance(module, Kernel)]
    known = (Sum, Product, Scale, *KERNELS.values())
    return list(dict.fromkeys(type(node).__name__ for node in nodes if type(node) not in known))


class _Reader:
    """Turns a syntax tree into a kernel; keeps the text to show the piece that is wrong."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, node: ast.expr) -> Kernel | float:
        number = _signed_number(node)
        if number is not None:
            return number
        if isinstance(node, ast.Call):
            return self.read_call(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            left, right = self.read(node.left), self.read(node.right)
            if not isinstance(left, Kernel) and not isinstance(right, Kernel):
                self.reject(node, "put the numbers of a product into one")
            if isinstance(node.op, ast.Mult):
                return left * right
            if not (isinstance(left, Kernel) and isinstance(right, Kernel)):
                self.reject(node, "a number can multiply a kernel, not be added; write for example 0.5 * Constant()")
            return left + right
        self.reject(node, "use kernel names, +, *, numbers and brackets")

    def read_call(self, node: ast.Call) -> Kernel:
        name = node.func.id if isinstance(node.func, ast.Name) else self.piece(node.func)
        if name not in KERNELS:
            known = {kernel.lower(): kernel for kernel in KERNELS}
            near = difflib.get_close_matches(name.lower()[:100], known, n=1, cutoff=0.4)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(KERNELS)}"
            raise ValueError(f"the kernel names must be known ones, got {shown(name)}; {hint}")
        args = [self.argument(arg) for arg in node.args]
        options = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.reject(node, "arguments are column names and numbers")
            if keyword.arg in options:
                self.reject(node, "give each option once")
            options[keyword.arg] = self.option(keyword.value)
        try:
            constructor_signature(KERNELS[name]).bind(*args, **options)
        except TypeError as error:
            raise ValueError(
                f"the arguments of {shortened(one_line(self.piece(node)))!r} do not fit: {error}; see the kernels page"
            ) from None
        try:
            return KERNELS[name](*args, **options)
        except TypeError as error:  # of the wrong type in a call, a wrong value in a text
            raise ValueError(str(error)) from None

    def argument(self, node: ast.expr) -> str | float | bool | None:
        if isinstance(node, ast.Name):
            return node.id
        number = _signed_number(node)
        if number is not None:
            return number
        if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (str, bool))):
            return node.value
        self.reject(node, "arguments are column names and numbers")

    def option(self, node: ast.expr) -> str | float | bool | None:
        """A keyword argument: also true and false, which cannot be meant as columns there."""
        if isinstance(node, ast.Name) and node.id in ("true", "false"):
            return node.id == "true"
        return self.argument(node)

    def piece(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.text, node) or self.text

    def reject(self, node: ast.expr, hint: str) -> NoReturn:
        raise ValueError(
            f"the kernel must be an expression like {EXAMPLE!r}, got {shortened(one_line(self.piece(node)))!r}; {hint}"
        )


def _signed_number(node: ast.expr) -> int | float | None:
    """The number that a node stands for, with its sign; None for anything else."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return sign * node.value
    return None
