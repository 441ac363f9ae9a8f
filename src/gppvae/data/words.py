"""Formatting of values, names and errors for error messages: on one line, and not too long."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

MAX_LENGTH = 60  # characters of a value or name in an error message
MAX_REASON = 200  # of the message of another error


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())


def shortened(text: str, length: int = MAX_LENGTH) -> str:
    """Text, truncated to `length` characters."""
    return text if len(text) <= length else f"{text[:length]}..."


def shown(value: object) -> str:
    """A value in an error message."""
    if isinstance(value, int) and abs(value) >= 10**MAX_LENGTH:  # Python may refuse to print it
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    return shortened(one_line(repr(value)))


def reason(error: BaseException) -> str:
    """The message of another error, without its full stop; its type if the message is empty."""
    return shortened(one_line(str(error)).rstrip("."), MAX_REASON) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A question with the closest known name; `otherwise` when none is close."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def decimal_comma(text: str) -> str:
    """Advice for a number written with a comma; empty for any other text."""
    return "write decimal points instead of commas" if re.fullmatch(r"[-+]?\d+,\d+", text) else ""
