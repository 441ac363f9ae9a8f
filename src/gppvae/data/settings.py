"""Settings of a model as text, for reports, commands and notebooks, without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN_ELSEWHERE = ("kernel", "phases")
OWN = "your own"  # name of the network where the user passed classes
CLASSES = ("encoder", "decoder")  # redundant beside the name of a built-in network


def settings_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of the settings that are not None."""
    hidden = SHOWN_ELSEWHERE if settings.get("network") == OWN else SHOWN_ELSEWHERE + CLASSES
    return [(name, _text(value)) for name, value in settings.items() if name not in hidden and value is not None]


def _text(value: Any) -> str:
    """A setting as text: numbers with six digits, classes as name(argument=value)."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        name, rest = value.get("name", ""), {key: part for key, part in value.items() if key != "name"}
        arguments = [f"{key}={_text(part)}" for key, part in rest.items() if part is not None]
        return f"{name}({', '.join(arguments)})" if arguments else str(name)
    return str(value)
