"""Copy the numbers of results/*.json into docs/benchmarks.md, between its markers: python benchmarks/_table.py"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from _common import INFERENCES, RESULTS, ROOT

from gppvae.data.atomic import write_bytes
from gppvae.paper.provenance import told, why_unclean

STEPS = ("term", "posterior")
MOST_DISTURBED, DISTURBED = 1.25, "disturbed"  # profiled time of a step, relative to its processor time
PAGE = ROOT / "docs" / "benchmarks.md"
SCRIPTS = {
    "epoch.json": "epoch.py",
    "gp_term.json": "gp_term.py",
    "faces_cost.json": "faces.py",
    "waiting.json": "waiting.py",
    "subjects.json": "subjects.py",
    "learned_or_categorical.json": "learned_or_categorical.py",
    "step.json": "step.py",
}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def epoch_table(result: dict[str, Any]) -> str:
    header = ["network", "threads", "plain VAE", *INFERENCES, "limit of exact", "target"]
    rows = []
    for case in result["cases"]:
        found = case["inferences"]
        vae, target = f"{found['vae']['seconds']:.2f} s", f"at most {found['exact']['target']:.2f}"
        ratios = [ratio(found[name]) for name in INFERENCES]
        rows.append([case["network"], str(case["threads"]), vae, *ratios, f"{case['exact_limit']:.2f}", target])
    return markdown(header, rows)


def ratio(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f}" + ("" if row["met"] else " (missed)")


def gp_term_table(result: dict[str, Any]) -> str:
    header = ["N, M, Q, L", "rows at once", "form", "gppvae", "term by autograd", "the term alone", "a prediction",
              "whole features", "a, B, c float64", "a, B, c float32", "extra memory", "of a, B, c",
              "difference"]  # fmt: skip
    rows = []
    for case in result["cases"]:
        times = case["speed_up"]
        names = ("autograd", "term by autograd", "prediction by autograd", "whole features", "paper64", "paper32")
        others = [f"{times[name]:.1f}" if name in times else "not measured" for name in names]
        rows.append([
            ", ".join(f"{value:,}" for value in case["shape"].values()), f"{case['batch_size']:,}", case["form"],
            f"{case['methods']['gppvae']['seconds'] * 1e3:.0f} ms", *others,
            f"{case['extra_bytes']['gppvae'] / 2**20:.0f} MiB", f"{case['memory_share']:.2f}",
            f"{case['gradient_difference']['gppvae']:.0e}",
        ])  # fmt: skip
    return markdown(header, rows)


def faces_table(result: dict[str, Any]) -> str:
    header = ["inference", "seconds per epoch", "of a VAE epoch", "GP", "peak memory", "beyond the VAE"]
    rows = []
    for name, row in result["inferences"].items():
        peak = f"{row['peak_memory'] / 1e6:,.0f} MB"
        more = f"{row['memory_beyond_vae'] / 1e6:+.0f} MB"
        cells = ["1", "", peak, ""] if name == "vae" else [ratio(row), f"{row['gp_share']:.1%}", peak, more]
        rows.append([name, f"{row['seconds']:.1f}", *cells])
    rows.append(["limit of exact", "", f"{result['exact_limit']:.2f}", "", "", ""])
    return markdown(header, rows)


def waiting_table(result: dict[str, Any]) -> str:
    def seconds(value: float | None) -> str:
        return f"not within {result['patience_seconds']:.0f} s" if value is None else f"{value:.2f} s"

    cells = [[case["waiting"], seconds(case["alone"]), seconds(case["beside_another"])] for case in result["cases"]]
    return markdown(["waiting", "alone", "beside another training"], cells)


def subjects_table(result: dict[str, Any]) -> str:
    dense = [
        [f"{case['subjects']:,}", f"{case['features']:,}", *(f"{case['speed_up'][name]:.1f}" for name in STEPS),
         f"{case['difference']:.0e}"]
        for case in result["dense"]
    ]  # fmt: skip
    alone = [
        [f"{case['subjects']:,}", f"{case['features']:,}",
         *(f"{case['methods'][name]['cpu_seconds']:.2f} s" for name in (*STEPS, "new")),
         f"{case['extra_bytes'] / 2**20:.0f} MiB"]
        for case in result["blocks"]
    ]  # fmt: skip
    sizes = list(result["epochs"]["vae"])
    epochs = [[name, *(f"{found[size]:.2f} s" for size in sizes)] for name, found in result["epochs"].items()]
    return "\n\n".join([
        markdown(["subjects", "features", "term, times faster", "q(B), times faster", "difference"], dense),
        markdown(["subjects", "features", "term", "q(B)", "a new subject", "extra memory"], alone),
        markdown(["an epoch of", *(f"{int(size):,} subjects" for size in sizes)], epochs),
    ])  # fmt: skip


def courses_table(result: dict[str, Any]) -> str:
    kernels = list(result["setting"]["kernels"])
    rows = [
        [case["courses"], str(case["visits"]), *(f"{case['mse'][name]:.3f}" for name in kernels)]
        for case in result["cases"]
    ]
    return markdown(["courses", "visits seen", *kernels], rows)


def step_table(result: dict[str, Any]) -> str:
    cases = result["cases"]
    parts = list(next(iter(cases.values()))["shares"])
    rows = []
    for name, case in cases.items():
        images, found = case["settings"], case["candidates"]
        size = " x ".join(map(str, [*images["image"][1:], images["image"][0]]))
        for when, key in (("now", "shares"), ("before", "former_shares")):
            seconds = found["as it is" if when == "now" else "former"]["cpu_seconds"]
            profiled = case["profiled_ms" if when == "now" else "former_profiled_ms"] / 1e3
            # The profiler has a clock on the wall only. Long operations are interrupted most, which raises their share.
            disturbed = profiled > MOST_DISTURBED * seconds
            shares = [DISTURBED if disturbed else f"{case[key][part]:.0%}" for part in parts]
            rows.append([name, f"{size}, {images['inference']}", when, f"{seconds * 1e3:.0f} ms", *shares])
    of_steps = {name: case["candidates"] for name, case in cases.items()}
    of_predictions = {name: case["prediction"] for name, case in cases.items()}
    return "\n\n".join([
        markdown(["case", "images, inference", "", "a step", *parts], rows),
        markdown(["a step with", *cases], tried(of_steps, "as it is")),
        markdown(["a prediction, rows decoded at once", *cases], tried(of_predictions, "64")),
    ])  # fmt: skip


def tried(found: dict[str, dict[str, Any]], base: str) -> list[list[str]]:
    """A row per candidate, with its ratio to `base` in every case."""
    names = [name for name in dict.fromkeys(name for case in found.values() for name in case) if name != base]
    return [
        [name, *(f"{case[name]['cpu_ratio']:.2f}" if name in case else "" for case in found.values())] for name in names
    ]


def about(result: dict[str, Any]) -> str:
    facts = result["about"]
    return (
        f"{facts['machine']}, torch {facts['versions']['torch']}, Python {facts['python']}, commit {facts['commit']}, "
        f"seed {facts['seed']}, {facts['wall_seconds']:.0f} s."
    )


def shown(result: dict[str, Any], file: str, table: Callable[[dict[str, Any]], str]) -> str:
    """The table and where it comes from, or why it is not shown."""
    reason = why_unclean(result["about"])
    try:
        made = table(result)
    except KeyError as error:
        reason = reason or f"written by an earlier version of the script, without {error}"
    command = f"python benchmarks/{SCRIPTS[file]}"
    return told({f"results/{file}": reason}, command) if reason else f"{made}\n\n{about(result)}"


def filled(page: str, name: str, content: str) -> str:
    """The page with what stands between the markers of `name` replaced."""
    pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    page, count = pattern.subn(lambda found: f"{found[1]}{content}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"expected one pair of markers {name}:begin and {name}:end in {PAGE.name}, got {count}")
    return page


def main() -> None:
    page = PAGE.read_text()
    tables = {"epoch": epoch_table, "gp_term": gp_term_table, "faces_cost": faces_table, "waiting": waiting_table}
    tables |= {"subjects": subjects_table, "learned_or_categorical": courses_table, "step": step_table}
    for name, table in tables.items():
        if not (RESULTS / f"{name}.json").exists():
            continue
        page = filled(page, name, shown(json.loads((RESULTS / f"{name}.json").read_text()), f"{name}.json", table))
    write_bytes(PAGE, page.encode())
    print(f"{PAGE.relative_to(ROOT)} holds the numbers of results/")


if __name__ == "__main__":
    main()
