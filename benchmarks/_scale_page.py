"""What the measurements of scale.py say: claims beside their targets, the figure, and the table of docs/scaling.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt
from _table import filled, markdown

from gppvae.data.atomic import write_bytes

Row = dict[str, Any]
SHAPES = {"digits": {"M": 8, "Q": 16, "L": 16}, "faces": {"M": 64, "Q": 9, "L": 256}}
METHODS = {"ours": "gppvae", "paper": "the paper's coefficients", "gpytorch": "GPyTorch low rank"}
INFERENCES = ("minibatch", "exact")
SCALED = ("minibatch", "global", "exact")
FASTER = {
    "two": "two processes over one",
    "two apart": "two processes that share nothing over one, the limit of this machine",
}
BYTES_PER_ROW = 40  # two coded columns and the order of an epoch, and the two columns of the table itself


def slope(rows: list[Row]) -> float:
    """Of log seconds against log N."""
    sizes, seconds = ([row[key] for row in rows] for key in ("N", "seconds"))
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def pick(rows: list[Row], **wanted: Any) -> list[Row]:
    """Rows with these values, smallest N first."""
    return sorted((r for r in rows if all(r[k] == v for k, v in wanted.items())), key=lambda r: r["N"])


def claims(training: list[Row], gp: list[Row], scaling: list[Row]) -> list[Row]:
    """What the measurements say about each target; parts that were not run say nothing."""
    found: list[Row] = []
    for inference in INFERENCES:
        rows = pick(training, inference=inference)
        if len(rows) > 1:
            found.append(claim(f"{inference}: time of an epoch against N, slope", slope(rows), 0.9, 1.1))
            grown = (rows[-1]["peak_bytes"] - rows[0]["peak_bytes"]) / 1e6
            name = f"{inference}: peak memory at {rows[-1]['N']:,} rows over {rows[0]['N']:,}, MB"
            found.append(claim(name, grown, None, 300.0))
    for row in (row for inference in SCALED for row in pick(scaling, inference=inference)):
        for name, least in (("two", 1.6), ("two apart", None)):
            found.append(claim(f"{row['inference']}: {FASTER[name]}", faster(row, name), least, None))
    for shape in SHAPES:
        mine = pick(gp, shape=shape, method="ours")
        if len(mine) > 1:
            found.append(claim(f"GP term, {shape}: slope", slope(mine), 0.9, 1.1))
        for other in ("paper", "gpytorch"):
            theirs = {row["N"]: row for row in pick(gp, shape=shape, method=other)}
            shared = [(row, theirs[row["N"]]) for row in mine if row["N"] in theirs]
            if shared:
                row, that = shared[-1]
                least = 4.0 if (shape, other) == ("faces", "paper") else None
                name = f"GP term, {shape}: times faster than {METHODS[other]} at {row['N']:,} rows"
                found.append(claim(name, that["seconds"] / row["seconds"], least, None))
                apart = max(abs(row["value"] - that["value"]) / abs(row["value"]) for row, that in shared)
                found.append(claim(f"GP term, {shape}: difference to {METHODS[other]}", apart, None, 1e-6))
    return found


def faster(row: Row, name: str) -> float:
    """How many times faster than one process; the median of rounds, each of which ran all in turns."""
    pairs = zip(row["rounds"]["one"], row["rounds"][name], strict=True)
    return float(np.median([one / other for one, other in pairs]))


def claim(name: str, value: float, least: float | None, most: float | None) -> Row:
    met = (least is None or value >= least) and (most is None or value <= most)
    return {"claim": name, "value": value, "least": least, "most": most, "met": met}


def draw(training: list[Row], gp: list[Row], path: Path) -> None:
    """Log-log: seconds of an epoch, peak memory, and the GP term of both shapes."""
    figure, panels = plt.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    for inference in INFERENCES:
        rows = pick(training, inference=inference)
        sizes = [row["N"] for row in rows]
        panels[0].loglog(sizes, [row["seconds"] for row in rows], "o-", label=inference)
        panels[1].semilogx(sizes, [row["peak_bytes"] / 2**20 for row in rows], "o-", label=inference)
    panels[0].set(title="training", xlabel="rows N", ylabel="seconds per epoch")
    panels[1].set(title="training, data on disk", xlabel="rows N", ylabel="peak resident memory, MiB", ylim=(0, None))
    for panel, (name, shape) in zip(panels[2:], SHAPES.items(), strict=True):
        for method, label in METHODS.items():
            rows = pick(gp, shape=name, method=method)
            panel.loglog([row["N"] for row in rows], [row["seconds"] for row in rows], "o-", label=label)
        letters = ", ".join(f"{key} {value}" for key, value in shape.items())
        panel.set(title=f"GP term with gradient ({letters})", xlabel="rows N", ylabel="seconds")
    for panel in panels:
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def tables(content: dict[str, Any]) -> str:
    """Claims beside targets, and formulas beside what was measured, as Markdown."""
    lines = [[row["claim"], number(row["value"]), _target(row) + ("" if row["met"] else " (missed)")]
             for row in content["claims"]]  # fmt: skip
    parts = [markdown(["claim", "measured", "target"], lines)]
    trained = [_trained(row, pick(content["training"], inference=row["inference"])[0]) for row in content["training"]]
    if trained:
        header = [
            "training",
            "N",
            "s per epoch",
            "microseconds per row",
            "peak MiB",
            "growth by formula, MB",
            "measured",
        ]
        parts.append(markdown(header, trained))
    terms = [_term(row) for row in content["gp"] if row["method"] == "ours"]
    if terms:
        parts.append(markdown(["GP term", "N", "seconds", "operations by formula", "so 10^9 per second"], terms))
    shared = [_shared(row, key) for row in content["scaling"] for key in ("rounds", "cpu")]
    if shared:
        parts.append(markdown(["seconds of an epoch", "", "one process", "two", "two that share nothing"], shared))
    sent = [_sent(row) for row in content["communication"]]
    if sent:
        header = ["sums of an epoch", "processes", "N", "batch", "numbers, by formula", "counted", "messages", "MB"]
        parts.append(markdown(header, sent))
    facts = content["about"]
    about = f"{facts['machine']}, one thread per process, torch {facts['versions']['torch']}, commit {facts['commit']}."
    return "\n\n".join([*parts, about])


def _target(row: Row) -> str:
    ends = [("at least", row["least"]), ("at most", row["most"])]
    return " and ".join(f"{word} {end:g}" for word, end in ends if end is not None) or "none"


def _trained(row: Row, first: Row) -> list[str]:
    by_formula, grown = BYTES_PER_ROW * (row["N"] - first["N"]), row["peak_bytes"] - first["peak_bytes"]
    each = 1e6 * row["seconds"] / row["N"]
    cells = [f"{row['N']:,}", f"{row['seconds']:.2f}", f"{each:.0f}", f"{row['peak_bytes'] / 2**20:.0f}"]
    return [row["inference"], *cells, f"{by_formula / 1e6:.0f}", f"{grown / 1e6:.0f}"]


def _shared(row: Row, key: str) -> list[str]:
    seconds = [f"{np.median(row[key][name]):.2f}" for name in ("one", "two", "two apart")]
    return [row["inference"], {"rounds": "on the clock", "cpu": "of a processor, each"}[key], *seconds]


def _sent(row: Row) -> list[str]:
    """What each process hands over to be summed in an epoch."""
    sizes = [f"{row[key]:,}" for key in ("processes", "N", "batch_size")]
    counts = [f"{row['summed_by_formula']:,}", f"{row['summed']:,}", f"{row['messages']:,}"]
    return [row["inference"], *sizes, *counts, f"{row['bytes'] / 1e6:.3g}"]


def _term(row: Row) -> list[str]:
    """Two sweeps of the sampled form, each N M (M + L) multiplications and additions, and their transposes."""
    M, L, H = row["M"], row["L"], row["M"] * row["Q"]  # noqa: N806
    operations = 2.0 * row["N"] * M * (M + L) * 4.0 + 5.0 * H**3 + 4.0 * H**2 * L
    shape = f"M {M}, Q {row['Q']}, L {L}"
    rate = operations / row["seconds"] / 1e9
    return [shape, f"{row['N']:,}", number(row["seconds"]), f"{operations:.1e}", f"{rate:.1f}"]


def number(value: float) -> str:
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}"


def fill_page(page: Path, content: dict[str, Any]) -> None:
    figure = "![Time and memory against the number of rows, both axes logarithmic](figures/scale.png)"
    write_bytes(page, filled(page.read_text(), "scale", f"{figure}\n\n{tables(content)}").encode())
