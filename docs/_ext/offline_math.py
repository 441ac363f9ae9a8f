"""Formulas as MathML, written when the pages are built: nothing is fetched, and no script runs in the browser.

docutils converts TeX to MathML. A formula that it cannot convert is a warning, and warnings are errors in `make docs`.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
# What docutils does not know or reads otherwise than TeX does, and the same in words that it reads rightly.
SYNONYMS = [
    (re.compile(r"\\[td]?frac\s*(\d)(\d)"), r"\\frac{\1}{\2}"),  # it takes the 12 of \tfrac12 for one number
    (re.compile(r"\\(bar|hat|tilde)\s*([a-zA-Z])(?![a-zA-Z])"), r"\\\1{\2}{}"),  # else an index goes below the letter
    # Names of functions need a thin space before what is not a bracket.
    (re.compile(r"(\\(?:log|exp|sin|cos|operatorname\{\w+\}))(?=\s*(?:\w|\\[a-zA-Z]))"), r"\1\\,"),
    (re.compile(r"\\big(?![a-zA-Z])"), r"\\bigl"),
    (re.compile(r"\\Big(?![a-zA-Z])"), r"\\Bigl"),
    (re.compile(r"\\dots(?![a-zA-Z])"), r"\\ldots"),
]


def mathml(tex: str, display: bool) -> str:
    """MathML of a formula; MathError where there is none."""
    for pattern, synonym in SYNONYMS:
        tex = pattern.sub(synonym, tex)
    return tex2mathml(tex, as_block=display)


def written(node: nodes.Element, display: bool) -> str:
    tex = node.astext()
    try:
        return mathml(tex, display)
    except MathError as error:
        logger.warning("cannot write this formula as MathML: %s (%s)", tex, error, location=node)
        return f"<code>{html.escape(tex)}</code>"


def visit_inline(self: Any, node: nodes.math) -> None:
    self.body.append(written(node, display=False))
    raise nodes.SkipNode


def visit_display(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{written(node, display=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("offline", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
