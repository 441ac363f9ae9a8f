"""Values, names and errors for error messages: on one line, and not too long."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

LONGEST = 60  # characters of a value or a name that an error message repeats
LONGEST_REASON = 200  # of another error


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())


def shortened(text: str, length: int = LONGEST) -> str:
    """Text, cut where it gets long."""
    return text if len(text) <= length else f"{text[:length]}..."


def shown(value: object) -> str:
    """A value as error messages show it."""
    if isinstance(value, int) and abs(value) >= 10**LONGEST:  # printing it may itself be refused
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    return shortened(one_line(repr(value)))


def reason(error: BaseException) -> str:
    """What another error says, without its full stop; its name if it says nothing."""
    return shortened(one_line(str(error)).rstrip("."), LONGEST_REASON) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that is closest, as a question; what is said `otherwise` when none is close."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def decimal_comma(text: str) -> str:
    """What to do about a number written with a comma; empty for any other text."""
    return "write decimal points instead of commas" if re.fullmatch(r"[-+]?\d+,\d+", text) else ""
