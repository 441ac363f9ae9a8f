"""The arguments of a kernel's constructor: checked against their annotations, remembered, written back as text."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from gppvae.data.words import shown


def read_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that were given, by name, each converted to the type that the constructor declares.

    Only str, bool, int, float and "or None" are checked; a class is free to declare anything else. Arguments that
    do not fit the signature at all give {}: the constructor then raises its own TypeError.
    """
    signature = constructor_signature(cls)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return {}
    declared = _declared_types(cls)
    read: dict[str, Any] = {}
    for name, value in given.items():
        parameter, hint = signature.parameters[name], declared.get(name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            read[name] = tuple(_read(cls, parameter, item, hint) for item in value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            read |= {key: _read(cls, parameter.replace(name=key), item, hint) for key, item in value.items()}
        else:
            read[name] = _read(cls, parameter, value, hint)
    return read


def constructor_signature(cls: type) -> inspect.Signature:
    """The signature of __init__ without self; inspect.signature(cls) may show that of __new__ instead."""
    _, *parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return inspect.Signature(parameters)


def write_call(cls: type, arguments: Mapping[str, Any]) -> str:
    """The call that makes the kernel: column names by position, everything else by name."""
    parameters = list(constructor_signature(cls).parameters.values())
    starred = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL and arguments.get(p.name)]
    words: list[str] = []
    by_name = False
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            words += map(repr, arguments.get(p.name, ()))
        elif p.name in arguments:
            value = arguments[p.name]
            column = isinstance(value, str) and p.default is p.empty and p.kind is not p.KEYWORD_ONLY
            # Parameters before *columns can only be passed by position.
            before_star = bool(starred) and p.kind is p.POSITIONAL_OR_KEYWORD
            by_name = p.kind is not p.POSITIONAL_ONLY and not before_star and (by_name or not column)
            words.append(f"{p.name}={value!r}" if by_name else repr(value))
    names = {p.name for p in parameters}
    words += [f"{name}={value!r}" for name, value in arguments.items() if name not in names]  # **options
    return f"{cls.__name__}({', '.join(words)})"


def check_range(owner: str, name: str, value: float, low: float, high: float, example: float) -> None:
    """Refuse a number outside [low, high]; NaN is outside of everything."""
    if not low <= value <= high:
        raise ValueError(
            f"{owner} needs {name} between {low:g} and {high:g}, got {shown(value)}; use for example {example}"
        )


def _declared_types(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    except (NameError, TypeError):  # annotations that cannot be looked up, for example of a class made in a function
        return {}


def _read(cls: type, parameter: inspect.Parameter, value: Any, declared: Any) -> Any:
    """`value` as the declared type; TypeError for another type, ValueError for a number out of bounds."""
    union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    allowed = typing.get_args(declared) if union else (declared,)
    if value is None and type(None) in allowed:
        return None
    kinds = [kind for kind in allowed if kind is not type(None)]
    if not kinds or not all(isinstance(kind, type) and kind in READERS for kind in kinds):
        return value.item() if isinstance(value, np.generic) else value  # plain numbers can be read back from text
    errors: list[Exception] = []
    for kind in kinds:
        try:
            return READERS[kind][1](value)
        except (TypeError, ValueError) as error:
            errors.append(error)
    # A number out of bounds is a ValueError; only a value of no declared type is a TypeError.
    raised = TypeError if all(isinstance(error, TypeError) for error in errors) else ValueError
    expected = " or ".join(READERS[kind][0] for kind in kinds)
    column = kinds == [str] and parameter.default is parameter.empty
    example = f"{cls.__name__}('time')" if column else f"{parameter.name}={READERS[kinds[0]][2]}"
    raise raised(
        f"{cls.__name__} needs {parameter.name} to be {expected}, got {shown(value)}; write for example {example}"
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode("utf-8")  # lone surrogates can be neither saved nor printed
    return str(value)


def _true_or_false(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if not math.isfinite(number):
        raise ValueError
    return number


def _whole_number(value: Any) -> int:
    if not isinstance(value, Integral) and not _number(value).is_integer():
        raise ValueError
    if isinstance(value, bool):
        raise TypeError
    return int(value)


READERS: dict[Any, tuple[str, Callable[[Any], Any], str]] = {
    str: ("valid text", _text, "'auto'"),
    bool: ("True or False", _true_or_false, "True"),
    int: ("a whole number", _whole_number, "8"),
    float: ("a finite number", _number, "1.0"),
}
