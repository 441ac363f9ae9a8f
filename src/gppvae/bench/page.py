"""The tables of docs/defaults.md, field.md and inference.md, made from the results files of the same names."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

from gppvae.bench.scores import LEVELS
from gppvae.bench.task import HIGHER
from gppvae.data.atomic import write_bytes
from gppvae.paper.peers import PEERS
from gppvae.report.record import read_results

COLUMNS = ("data", "seeds", "error", "simple answers", "target", "reached", "50 / 80 / 90% intervals", "minutes")
PUBLISHED = "published elsewhere"
NOT_RUN = "Not run yet: `gppvae bench {}`."


def table(content: dict[str, Any]) -> str:
    """One row per question, means over seeds, and where the numbers come from, as Markdown."""
    if not content["runs"]:
        return NOT_RUN.format(content["experiment"])
    if content["experiment"] == "inference":
        return _by_inference(content)
    beside = list(dict.fromkeys(name for run in content["runs"].values() for name in run.get("beside", {})))
    published = any(answer.get("published") for run in content["runs"].values() for answer in run["questions"].values())
    columns = [*COLUMNS[:4], *beside, *([PUBLISHED] if published else []), *COLUMNS[4:]]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, runs in _by_question(content).items():
        cells = _row(name, runs)
        others = [_beside(name, peer, runs) for peer in beside] + ([_published(name, runs)] if published else [])
        lines.append("| " + " | ".join([*cells[:4], *others, *cells[4:]]) + " |")
    return "\n".join([*lines, "", *_sources(content)])


def _by_inference(content: dict[str, Any]) -> str:
    """One row per inference, one column per question."""
    questions = _by_question(content)
    told = dict.fromkeys(run["facts"]["settings"]["inference"] for run in content["runs"].values())
    heads = [f"{name}, {runs[0]['questions'][name]['kind']}" for name, runs in questions.items()]
    lines = ["| " + " | ".join(["`inference=`", *heads]) + " |", "|---" * (1 + len(heads)) + "|"]
    for inference in told:
        cells = []
        for name, runs in questions.items():
            own = [run for run in runs if run["facts"]["settings"]["inference"] == inference]
            cells.append(_mean_error(name, own) + f", {_minutes(own)} min" if own else "")
        lines.append("| " + " | ".join([f'`"{inference}"`', *cells]) + " |")
    return "\n".join([*lines, "", *_sources(content)])


def _mean_error(name: str, runs: list[dict[str, Any]]) -> str:
    """Over seeds, with the range where there are several."""
    errors = [run["questions"][name]["error"] for run in runs]
    return f"{fmean(errors):.4g}" + (f" ({min(errors):.4g} to {max(errors):.4g})" if len(errors) > 1 else "")


def _minutes(runs: list[dict[str, Any]]) -> str:
    return f"{fmean(run['seconds'] for run in runs) / 60:.1f}"


def filled(text: str, content: dict[str, Any]) -> str:
    """The page with the table of these results."""
    name = content["experiment"]
    region = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    new, count = region.subn(lambda found: f"{found[1]}{table(content)}\n{found[2]}", text)
    if count != 1:
        raise ValueError(f"expected one pair of comments {name}:begin and {name}:end in the page, got {count}")
    return new


def write(page: Path | None, results: Path) -> Path:
    """Put the table of the results into the page, by default the one of the command that gave them."""
    content = read_results(results)
    if not isinstance(content.get("runs"), dict) or not isinstance(content.get("experiment"), str):
        raise ValueError(f"expected results of `gppvae bench` in {results}, got others; choose another --results")
    place = page if page is not None else Path("docs") / f"{content['experiment']}.md"
    write_bytes(place, filled(place.read_text("utf-8"), content).encode())
    return place


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
    kind = first.get("kind", runs[0]["facts"]["error"])
    reached = "" if first["limit"] is None else f"{sum(answer['met'] for answer in answers)} of {len(answers)}"
    covered = [answer["coverage"] for answer in answers if answer["coverage"] is not None]
    return [
        name + ("" if first["asked_by"] == "predict" else f", by {first['asked_by']}"),
        str(len(answers)),
        f"{kind} {_mean_error(name, runs)}",
        ", ".join(
            f"{simple} {value:.4g} (ratio {fmean(errors) / value:.2f})" for simple, value in first["simple"].items()
        ),
        _target(first, "at least " if kind in HIGHER else ""),
        reached,
        " / ".join(_interval([entry[f"{level:.0%}"] for entry in covered]) for level in LEVELS) if covered else "",
        _minutes(runs),
    ]


def _beside(name: str, peer: str, runs: list[dict[str, Any]]) -> str:
    """What the peer gave for a question, or why it did not."""
    found = [run["beside"][peer] for run in runs if peer in run.get("beside", {})]
    values = [entry["values"][name] for entry in found if name in entry.get("values", {})]
    if values:
        minutes = fmean(entry["seconds"] for entry in found if "values" in entry) / 60
        spread = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
        return f"{fmean(values):.4g}{spread}, {minutes:.1f} minutes"
    return next((entry["not_run"] for entry in found if "not_run" in entry), "")


def _published(name: str, runs: list[dict[str, Any]]) -> str:
    """Numbers of other systems, with their sources."""
    task = runs[0]["questions"][name].get("published")
    return ", ".join(f"{peer.method} {peer.value} ([source]({peer.url}))" for peer in PEERS if peer.task == task)


def _target(answer: dict[str, Any], least: str) -> str:
    if answer["target"] is None:
        return ""
    of = " or ".join(answer["target"]["of"])
    factor = "" if answer["target"]["value"] == 1.0 else f"{answer['target']['value']:g} of "
    return f"{least}{answer['limit']:.4g}" + (f" ({factor}{of})" if of else "")


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
