"""The table of docs/promises.md from results/torture.json: what is promised, how often tried, how often failed."""

import re
from pathlib import Path
from typing import Any

from gppvae.data.atomic import write_bytes
from gppvae.report.record import read_results

# Promise, and the start of the names of the attacks on it.
PROMISES = {
    "A killed `fit` ends bit by bit where an undisturbed one does; OTHERS leave no half results": "SIGKILL of fit",
    "A full or failing disk ends a `fit` with one sentence, and the same call continues it to the same model": (
        "a failing write"
    ),
    "A worker of `torchrun` that is killed or stopped changes nothing": "a ",
    "A model file with wrong content is refused, or answers with finite numbers": "model files",
    "A run whose checkpoint has wrong content is refused, or ends in finite numbers": "checkpoints",
    "A run whose `config.json` has wrong content is refused, or ends in finite numbers": "changed config",
    "A damaged array is refused, or read as finite numbers": ("changed .npy", "changed Zarr", "changed HDF5"),
    "A damaged image is refused, or read as pixels": "changed image",
    "A kernel text is refused in one sentence, or read as what it says": "random kernel",
    "Settings that make no sense are refused in one sentence": "random constructor",
    "A command line ends with exit code 0, 2 or 3, and never with a trace": "random command",
}
OTHERS = ("predict", "encode", "impute", "update", "add_objects", "save")
REGION = re.compile(r"(<!-- torture:begin -->\n).*?(<!-- torture:end -->)", re.DOTALL)


def by_promise(attacks: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Attacks on each promise; one that fits none, or a promise without any, is an error."""
    found: dict[str, list[dict[str, Any]]] = {promise: [] for promise in PROMISES}
    for attack in attacks:
        # The longest start wins, so that "a failing write" is not taken for "a ... worker".
        fits = [
            (len(start), promise)
            for promise, starts in PROMISES.items()
            for start in ([starts] if isinstance(starts, str) else starts)
            if attack["what"].startswith(start)
        ]
        if not fits:
            raise ValueError(f"no promise in tests/torture/page.py names the attack {attack['what']!r}; add one")
        found[max(fits)[1]].append(attack)
    return found


def table(content: dict[str, Any]) -> str:
    """The table and where it comes from, as Markdown."""
    lines = ["| promise | tried | failed |", "|---|---|---|"]
    for promise, attacks in by_promise(content["attacks"]).items():
        tried, failed = (sum(attack[name] for attack in attacks) for name in ("tried", "failed"))
        counts = (f"{tried:,}", failed) if attacks else ("not tried", "")
        lines.append(f"| {_of_those_tried(promise, attacks)} | {counts[0]} | {counts[1]} |")
    about, settings, total = content["about"], content["settings"], content["total"]
    state = "" if about["clean"] else ", with changes that are in no commit"
    source = (
        f"{total['tried']:,} tries in all, {total['failed']} failed. Seed {settings['seed']}, "
        f"commit {about['commit']}{state}, {about['machine']}, torch {about['versions']['torch']}, "
        f"Python {about['python']}."
    )
    return "\n".join([*lines, "", source])


def _of_those_tried(promise: str, attacks: list[dict[str, Any]]) -> str:
    """The promise for what was killed beside a fit, as the names of the attacks say, and nothing else."""
    found = [set(re.findall(r"\w+", attack["what"].partition("(")[0])) - {"and"} for attack in attacks]
    both = set.intersection(*found) if found else set()
    others = [name for name in OTHERS if name in both]
    return promise.replace("OTHERS", ", ".join(f"`{name}`" for name in others) or "other commands")


def filled(text: str, content: dict[str, Any]) -> str:
    """The page with the table of these results."""
    new, count = REGION.subn(lambda found: f"{found[1]}{table(content)}\n{found[2]}", text)
    assert count == 1, "the page has one pair of markers torture:begin and torture:end"
    return new


def write(page: Path, results: Path) -> None:
    """Put the table of the results into the page."""
    write_bytes(page, filled(page.read_text("utf-8"), read_results(results)).encode())
