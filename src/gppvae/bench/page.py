"""The table of docs/defaults.md, made from results/defaults.json."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

from gppvae.bench.measure import LEVELS
from gppvae.data.atomic import write_bytes
from gppvae.report.record import read_results

REGION = re.compile(r"(<!-- defaults:begin -->\n).*?(<!-- defaults:end -->)", re.DOTALL)
COLUMNS = ("data", "seeds", "error", "simple answers", "target", "reached", "50 / 80 / 90% intervals", "minutes")
NOT_RUN = "Not run yet: `gppvae bench defaults`."


def table(content: dict[str, Any]) -> str:
    """One row per question, means over seeds, and where the numbers come from, as Markdown."""
    if not content["runs"]:
        return NOT_RUN
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for name, runs in _by_question(content).items():
        lines.append("| " + " | ".join(_row(name, runs)) + " |")
    return "\n".join([*lines, "", *_sources(content)])


def filled(text: str, content: dict[str, Any]) -> str:
    """The page with the table of these results."""
    new, count = REGION.subn(lambda found: f"{found[1]}{table(content)}\n{found[2]}", text)
    if count != 1:
        raise ValueError(f"expected one pair of comments defaults:begin and defaults:end in the page, got {count}")
    return new


def write(page: Path, results: Path) -> None:
    """Put the table of the results into the page."""
    write_bytes(page, filled(page.read_text("utf-8"), read_results(results)).encode())


def _by_question(content: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Runs of each question, in the file's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in content["runs"].values():
        for name in run["questions"]:
            found.setdefault(name, []).append(run)
    return found


def _row(name: str, runs: list[dict[str, Any]]) -> list[str]:
    answers = [run["questions"][name] for run in runs]
    errors, first = [answer["error"] for answer in answers], answers[0]
    spread = f" ({min(errors):.4g} to {max(errors):.4g})" if len(errors) > 1 else ""
    reached = "" if first["limit"] is None else f"{sum(answer['met'] for answer in answers)} of {len(answers)}"
    return [
        name + ("" if first["asked_by"] == "predict" else f", by {first['asked_by']}"),
        str(len(answers)),
        f"{runs[0]['facts']['error']} {fmean(errors):.4g}{spread}",
        ", ".join(
            f"{simple} {value:.4g} (ratio {fmean(errors) / value:.2f})" for simple, value in first["simple"].items()
        ),
        _target(first),
        reached,
        " / ".join(_interval([answer["coverage"][f"{level:.0%}"] for answer in answers]) for level in LEVELS),
        f"{fmean(run['seconds'] for run in runs) / 60:.1f}",
    ]


def _target(answer: dict[str, Any]) -> str:
    if answer["target"] is None:
        return ""
    of = " or ".join(answer["target"]["of"])
    return f"{answer['limit']:.4g}" + (f" ({answer['target']['value']:g} of {of})" if of else "")


def _interval(found: list[dict[str, float]]) -> str:
    """Mean coverage over seeds, with the range over channels and seeds where there is one."""
    least, most = min(entry["least"] for entry in found), max(entry["most"] for entry in found)
    mean = f"{fmean(entry['all'] for entry in found):.0%}"
    return mean if f"{least:.0%}" == f"{most:.0%}" == mean else f"{mean} ({least:.0%} to {most:.0%})"


def _sources(content: dict[str, Any]) -> list[str]:
    """One sentence per version of the code and machine that gave runs."""
    found: dict[str, set[str]] = {}
    for run in content["runs"].values():
        about = run["about"]
        state = "" if about["clean"] else ", with changes that are in no commit"
        source = (
            f"commit {about['commit']}{state}, {about['machine']}, {run['threads']} threads, "
            f"torch {about['versions']['torch']}, Python {about['python']}"
        )
        found.setdefault(source, set()).add(run["task"])
    if len(found) == 1:
        return [f"All runs: {next(iter(found))}."]
    return [f"- {', '.join(sorted(tasks))}: {source}." for source, tasks in found.items()]
