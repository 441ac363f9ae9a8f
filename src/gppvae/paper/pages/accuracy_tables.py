"""Tables of the accuracy experiment, of the ablation and of the time to the paper's accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gppvae.paper.peers import PEERS, best
from gppvae.report.record import read_results

NETWORKS = {"wide": "wide", "paper": "the peers' 8 channels"}
ResultTable = tuple[list[str], list[list[str]]]


def accuracy(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Error at the held-out angle, both networks."""
    columns = ["network", "MSE", "averaged over 64 draws", "average of the seeds", "seeds", "training per seed"]
    rows = []
    for network, found in _found(results).items():
        seconds = found["fit_seconds"]["mean"]
        cells = [
            mean_and_spread(found["mse"]),
            mean_and_spread(found["mse_averaged"]),
            f"{found['mse_of_average']:.4f}",
        ]
        rows.append([NETWORKS[network], *cells, str(len(found["seeds"])), f"{seconds:.0f} s"])
    return columns, rows


def accuracy_overview(results: Path, options: Mapping[str, str]) -> ResultTable:
    """The paper beside ours, for the first page."""
    columns = ["", "MSE", "split", "source"]
    paper, peer = PEERS[0], best("rotated-mnist")
    rows = [
        [paper.method, paper.value, paper.note, f"[{paper.source}]({paper.url})"],
        [f"best peer we know ({peer.method})", peer.value, peer.note, f"[{peer.source}]({peer.url})"],
    ]
    for network, found in _found(results).items():
        text = f"{mean_and_spread(found['mse'])} ({len(found['seeds'])} seeds)"
        where = f"`gppvae reproduce accuracy --network {network}`"
        rows.append([f"**gppvae**, {NETWORKS[network]} network", f"**{text}**", "published", where])
    return columns, rows


def peers(results: Path, options: Mapping[str, str]) -> ResultTable:
    """What others report on a task, and ours where it was run; option task."""
    task = options.get("task", "rotated-mnist")
    rows = [[peer.method, peer.value, f"[{peer.source}]({peer.url})", peer.note] for peer in PEERS if peer.task == task]
    if task == "rotated-mnist":
        for network, found in _found(results).items():
            text = f"{mean_and_spread(found['mse'])} ({len(found['seeds'])} seeds)"
            where = f"`gppvae reproduce accuracy --network {network}`"
            rows.append([f"**gppvae**, {NETWORKS[network]} network", f"**{text}**", where, "the published split"])
    return ["method", "value", "source", "note"], rows


def coverage(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Share of values inside central intervals."""
    found = _found(results)
    levels = list(next(iter(found.values()))["coverage"]) if found else []
    columns = ["network", *(f"{level} interval" for level in levels), "NLL per pixel"]
    rows = [
        [
            NETWORKS[network],
            *(f"{entry['coverage'][level]['mean']:.1%}" for level in levels),
            mean_and_spread(entry["nll_per_pixel"], 3),
        ]
        for network, entry in found.items()
    ]
    return columns, rows


def new_objects(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Error on the other views of digits never seen in training."""
    columns = ["views given", *(f"GPPVAE, {NETWORKS[name]}" for name in _found(results)), "copy of the nearest view",
               "mean image of the view"]  # fmt: skip
    found = list(_found(results).values())
    rows = []
    for k in found[0]["new_objects"] if found else []:
        ours = [mean_and_spread(entry["new_objects"][k]["mse"]) for entry in found]
        simple = [
            f"{found[0]['new_objects'][k][name]['mean']:.4f}" for name in ("copy_nearest_view", "mean_image_of_view")
        ]
        rows.append([k, *ours, *simple])
    return columns, rows


def ablation(results: Path, options: Mapping[str, str]) -> ResultTable:
    """What each part of a recipe is worth; option study."""
    path = results / f"ablation_{options.get('study', 'best')}.json"
    variants = read_results(path)["variants"] if path.is_file() else {}
    rows = [[name, f"{row['inner']:.5f}", f"{row['train']:.5f}"] for name, row in variants.items()]
    return ["change", "MSE at the inner angle", "training MSE"], rows


def time_to_accuracy(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Seconds of training until the test error is the paper's."""
    path = results / "time_to_accuracy.json"
    found: dict[str, Any] = read_results(path) if path.is_file() else {"candidates": {}}
    rows = []
    for name, entry in found["candidates"].items():
        reached = f"{entry['seconds']:.0f} s" if entry["seconds"] else f"not within {entry['trained_seconds']:.0f} s"
        rows.append([name, reached, f"{entry['best_mse']:.4f}"])
    return ["inference, network", "time to 0.0280", "least MSE seen"], rows


def _found(results: Path) -> dict[str, dict[str, Any]]:
    paths = {network: results / f"accuracy_{network}.json" for network in NETWORKS}
    return {network: read_results(path) for network, path in paths.items() if path.is_file()}


def mean_and_spread(entry: Mapping[str, float], digits: int = 4) -> str:
    """A mean over seeds with its standard deviation, with at least as many digits as the latter has a first one in."""
    if entry["std"] > 0:
        digits = max(digits, math.ceil(-math.log10(entry["std"])))
    return f"{entry['mean']:.{digits}f} ± {entry['std']:.{digits}f}"
