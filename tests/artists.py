"""What was drawn, read back from the artists of a figure."""

from typing import Any

import numpy as np


def line(ax: Any, **wanted: str) -> Any:
    """The one line of an axes with the wanted gid or label."""
    found = [
        artist
        for artist in ax.get_lines()
        if all(getattr(artist, f"get_{key}")() == value for key, value in wanted.items())
    ]
    assert len(found) == 1, f"{wanted}: {found}"
    return found[0]


def legend_texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def ends_of_bars(container: Any) -> np.ndarray:
    """(n, 2) lower and upper ends of the error bars of an errorbar container."""
    (bars,) = container[2]
    return np.array([segment[:, 1] for segment in bars.get_segments()])
