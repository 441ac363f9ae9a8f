"""Docstrings of the package as reStructuredText.

They are plain text with Google sections, several short entries on a line, and single backticks around code. Here the
sections become headings, entries become list items, and characters that mean something to reStructuredText are escaped.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

HEADINGS = {
    "Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises", "Yields": "Yields",
    "Example": "Example", "Examples": "Examples",
}  # fmt: skip
HEADING = re.compile(rf"^({'|'.join(HEADINGS)}):\s*$")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")
NEXT_ENTRY = re.compile(r"(?<=[.;,)])  +(?=\*{0,2}\w+(?:, \*{0,2}\w+)*: )")


def escaped(text: str) -> str:
    """Text with `code` as literals and everything else as it stands."""
    parts = re.split(r"`+([^`]+)`+", text)
    plain = [re.sub(r"([\\*_|])", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part}``" for part in parts[1::2]]
    return "".join(piece for pair in zip(plain, [*code, ""], strict=True) for piece in pair)


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def entries(body: list[str]) -> list[str]:
    """Items of a list from lines "name: text", continued where the indentation is deeper."""
    depth = min(indent_of(line) for line in body if line.strip())
    joined: list[str] = []
    for line in body:
        if line.strip() and indent_of(line) == depth:
            joined.append(line.strip())
        elif line.strip():
            joined[-1] += " " + line.strip()
    out = []
    for item in (piece for line in joined for piece in NEXT_ENTRY.split(line)):
        found = ENTRY.match(item)
        out.append(f"* ``{found[1]}``: {escaped(found[2])}" if found else f"* {escaped(item)}")
    return out


def paragraphs(body: list[str]) -> list[str]:
    """Text; indented lines (equations) keep their layout."""
    out: list[str] = []
    for line in body:
        if line.startswith("    ") and (not out or not out[-1].strip()):
            out += ["::", ""]
        out.append(line if line.startswith("    ") else escaped(line))
    return out


def rewritten(lines: list[str]) -> list[str]:
    """The whole docstring."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        found = HEADING.match(lines[at])
        end = at + 1
        if found:
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
                end += 1
            out += section(found[1], lines[at + 1 : end])
        else:
            while end < len(lines) and not HEADING.match(lines[end]):
                end += 1
            out += paragraphs(lines[at:end])
        at = end
    return out


def section(name: str, body: list[str]) -> list[str]:
    if not any(line.strip() for line in body):
        return []
    depth = min(indent_of(line) for line in body if line.strip())
    dedented = [line[depth:] for line in body]
    if name.startswith("Example"):
        made = dedented
    else:
        made = [escaped(line) for line in dedented] if name in ("Returns", "Yields") else entries(body)
    return ["", f".. rubric:: {HEADINGS[name]}", "", *made, ""]


def on_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = rewritten(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", on_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
