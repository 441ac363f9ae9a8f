"""Messages that the page on troubles quotes are messages of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faq.md").read_text("utf-8")
QUOTED = [
    " ".join(found.split()) for found in re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
]


def messages() -> list[str]:
    """Every text in the source, with a mark where a value is put in."""
    found = []
    for path in sorted((ROOT / "src" / "gppvae").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
    return found


MESSAGES = messages()


def quotes(quoted: str, message: str) -> bool:
    """Whether the message reads as quoted: `...` may stand for a part with values, and only for such."""
    parts = [re.escape(part) for part in quoted.split("...")]
    found = re.fullmatch("(.*?)".join(parts), " ".join(message.split()), flags=re.DOTALL)
    return found is not None and all("\0" in part for part in found.groups()) and "\0" not in "".join(parts)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 12 and len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda text: text[:40])
def test_a_quoted_message_exists(quoted: str) -> None:
    assert any(quotes(quoted, message) for message in MESSAGES)


def test_the_comparison_can_fail() -> None:
    assert quotes("got ... rows", "got \0 rows") and quotes("got ...; do ...", "got \0 and \0; do \0")
    assert not quotes("got ... rows", "got no rows") and not quotes("got ... rows", "got \0 rows; match")
    assert not quotes("got rows", "got \0 rows")
