"""Settings of a model in words, for reports, commands and notebooks. Nothing here needs PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

APART = ("kernel", "phases")  # shown in places of their own
OWN = "your own"  # the network of an estimator that was given classes
CLASSES = ("encoder", "decoder")  # which say nothing beside the name of a network


def settings_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of settings that have a value."""
    hidden = APART if settings.get("network") == OWN else APART + CLASSES
    return [(name, _text(value)) for name, value in settings.items() if name not in hidden and value is not None]


def _text(value: Any) -> str:
    """A setting as people write it: six digits of a number; a class by its name, with what was said of it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        name, rest = value.get("name", ""), {key: part for key, part in value.items() if key != "name"}
        said = [f"{key}={_text(part)}" for key, part in rest.items() if part is not None]
        return f"{name}({', '.join(said)})" if said else str(name)
    return str(value)
