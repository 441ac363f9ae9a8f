"""Run the pages that are programs: `python docs/run_pages.py [page ...]`, or `make tutorials` for all of them.

The Python blocks of a page run from top to bottom in an empty folder. What a block prints is put into a `text` block
below it, pictures that it saves go to docs/figures/tutorials/, and results/tutorials.json keeps every printed line, and
of each page versions, commit and machine. The tests run the same pages in short form and compare the printed lines with
that file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
FIGURES = DOCS / "figures" / "tutorials"
RESULTS = DOCS.parent / "results" / "tutorials.json"
PAGES = (
    "quickstart.md",
    "tutorials/turning_objects.md",
    "tutorials/subjects_over_time.md",
    "tutorials/places_and_counts.md",
    "tutorials/series_with_holes.md",
    "tutorials/turning_digits.md",
    "tutorials/section_of_cortex.md",
    "howto/choosing_a_kernel.md",
    "howto/new_objects.md",
)
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
MOST_BYTES = 300_000  # of a picture


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def outputs_on(text: str) -> list[str]:
    """What the page says its blocks print, one entry per Python block."""
    return [found["output"] or "" for found in BLOCK.finditer(text)]


def run(page: Path, folder: Path) -> list[str]:
    """Run the blocks of a page in a folder; what each of them prints."""
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    text, names, printed = page.read_text("utf-8"), {"__name__": page.stem}, []
    with inside(folder):
        for found in BLOCK.finditer(text):
            # Blank lines put the block at its place in the page, so that a traceback names the right line.
            code = "\n" * text[: found.start("code")].count("\n") + found["code"]
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(code, str(page), "exec"), names)
            printed.append(said.getvalue())
    pyplot.close("all")
    return printed


def written(text: str, printed: list[str]) -> str:
    """The page with what its blocks printed."""
    left = iter(printed)

    def block(found: re.Match[str]) -> str:
        said = next(left)
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{said.rstrip()}\n```\n" if said else "")

    return BLOCK.sub(block, text)


def main() -> None:
    from gppvae.report.record import read_results, write_results
    from gppvae.training.folder import provenance

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=PAGES, help="paths below docs/; all when none is given")
    names = parser.parse_args().pages
    entries: dict[str, Any] = read_results(RESULTS)["pages"] if RESULTS.exists() else {}
    about = provenance()  # of the pages that are run now; the others keep theirs
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            start, place = time.perf_counter(), Path(folder) / Path(name).stem
            place.mkdir()
            printed = run(DOCS / name, place)
            entries[name] = {"printed": printed, "seconds": round(time.perf_counter() - start, 1), "about": about}
            print(f"{name}: {entries[name]['seconds']} s", file=sys.stderr)
        write_results(RESULTS, {"experiment": "tutorials", "pages": entries}, about)
        FIGURES.mkdir(parents=True, exist_ok=True)
        for picture in Path(folder).glob("*/*.png"):
            if picture.stat().st_size > MOST_BYTES:
                raise ValueError(f"{picture.name} must have at most {MOST_BYTES} bytes; save it with a lower dpi")
            shutil.copy(picture, FIGURES / picture.name)
    for name in names:
        page = DOCS / name
        page.write_text(written(page.read_text("utf-8"), entries[name]["printed"]), "utf-8")


if __name__ == "__main__":
    main()
