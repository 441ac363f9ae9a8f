"""The repository stays light, its pages name no machine, and their links lead somewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 5_000_000
NOT_OURS = {"runs", "_build", "build", "dist"}
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp|root)/")
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1`*~* *$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
INLINE_LINK = re.compile(r"\]\(\s*<?([^)<>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
LINK_DEFINITION = re.compile(r"^ {0,3}\[[^\]^][^\]]*\]:\s*<?([^\s>]+)>?", re.MULTILINE)
OUTSIDE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|#)", re.IGNORECASE)


def pages(pattern: str) -> list[Path]:
    """The repository's own files of that name pattern; not those of environments, builds or runs."""
    found = (path for path in ROOT.rglob(pattern) if path.is_file())
    return [
        path
        for path in sorted(found)
        if not any(part.startswith(".") or part in NOT_OURS for part in path.relative_to(ROOT).parts[:-1])
    ]


def tracked_files() -> list[Path]:
    """Every file that git tracks and the work tree holds; skips where git cannot say."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, so the tracked files are unknown")
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    paths = [ROOT / name for name in answer.stdout.split("\0") if name]
    if not paths:
        pytest.skip(f"not a git checkout with tracked files: {answer.stderr.strip() or 'none tracked'}")
    return [path for path in paths if path.is_file()]


def machine_paths(text: str) -> list[str]:
    """The lines of `text` that hold an absolute path of one particular machine."""
    return [line.strip() for line in text.splitlines() if MACHINE_PATH.search(line)]


def relative_links(text: str) -> list[str]:
    """The targets of a Markdown text's links to other files, without their anchors; code is left out."""
    prose = INLINE_CODE.sub("", FENCE.sub("", text))
    targets = INLINE_LINK.findall(prose) + LINK_DEFINITION.findall(prose)
    return [target.split("#")[0] for target in targets if not OUTSIDE.match(target)]


def dead_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file."""
    links = relative_links(page.read_text("utf-8"))
    return [link for link in links if not (page.parent / link).exists()]


def test_tracked_files_are_small() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked_files()}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}


def test_pages_name_no_machine() -> None:
    texts = pages("*.md") + pages("*.cff") + pages("*.rst")
    assert texts
    found = {str(path.relative_to(ROOT)): machine_paths(path.read_text("utf-8")) for path in texts}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_relative_links_lead_to_files() -> None:
    found = {str(page.relative_to(ROOT)): dead_links(page) for page in pages("*.md")}
    assert found
    assert {name: links for name, links in found.items() if links} == {}


@pytest.mark.parametrize("folder", ["work", "tmp", "root"])
def test_checker_reports_machine_paths(folder: str) -> None:
    path = f"/{folder}/data"
    assert machine_paths(f"fine\nsee `{path}/x`") == [f"see `{path}/x`"]
    assert machine_paths(f"GPPVAE_DATA={path} make test") == [f"GPPVAE_DATA={path} make test"]
    assert machine_paths(f"runs{path} and https://example.org{path}") == []


def test_checker_reports_dead_links(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("here")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#part) ![c](gone.png) [d](https://example.org/x) [e](#part)\n"
        'see [f][ref], [g](lost/file.md "title") and `[h](code.md)`\n\n'
        "[ref]: missing.md\n\n```md\n[i](fenced.md)\n```\n"
    )
    assert dead_links(page) == ["gone.png", "lost/file.md", "missing.md"]
