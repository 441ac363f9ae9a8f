"""A line `others` in a toctree stands for the pages of that folder that are not named on the page itself.

So a new page appears without a change here, where a pattern would warn as long as it matches nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

LINE = re.compile(r"^others\n", re.MULTILINE)


def on_read(app: Sphinx, name: str, source: list[str]) -> None:
    if LINE.search(source[0]):
        folder = (Path(app.srcdir) / name).parent
        rest = sorted(page.stem for page in folder.glob("*.md") if page.stem != "index")
        named = set(re.findall(r"^([\w-]+)$", source[0], flags=re.MULTILINE))
        unnamed = "".join(f"{page}\n" for page in rest if page not in named)
        source[0] = LINE.sub(lambda _: unnamed, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", on_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
