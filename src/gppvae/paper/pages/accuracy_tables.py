"""Tables of the accuracy experiment, of the ablation and of the time to the paper's accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from gppvae.paper.ablation import STUDIES, variant_recipe
from gppvae.paper.accuracy import recipe_of
from gppvae.paper.comparison.setup import recipe_facts
from gppvae.paper.peers import PEERS, best
from gppvae.paper.provenance import told, why_stale, why_unclean
from gppvae.paper.statistics import mean_and_range
from gppvae.report.record import read_results

NETWORKS = {
    "image": "image, that of the defaults",
    "image-5": "five of these in one model",
    "paper": "the peers' 8 channels, 48 latents",
    "paper-5": "five of 8 channels in one model",
}
DEFAULTS = "gppvae bench defaults --task digits"
ResultTable = tuple[list[str], list[list[str]]]


def accuracy(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Error at the held-out angle, with every network."""
    columns = ["network", "MSE", "averaged over 64 draws", "average of the seeds", "seeds", "processor time per seed"]
    rows = []
    for network, found in _found(results).items():
        seconds = fmean(found["trained"]["cpu_seconds"])
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
    ours = {"image": "gppvae, the recipe for digits", "image-5": "gppvae, five such networks in one model"}
    for network, entry in _found(results).items():
        if network in ours:
            text = f"{mean_and_spread(entry['mse'])} ({_seeds(len(entry['seeds']))})"
            rows.append([ours[network], text, "published", f"`gppvae reproduce accuracy --network {network}`"])
    found = _defaults_on_digits(results)
    if found:
        text = f"{mean_and_spread(mean_and_range([run['error'] for run in found]))} ({_seeds(len(found))})"
        rows.append(["**gppvae**, a kernel and nothing else", f"**{text}**", "published", f"`{DEFAULTS}`"])
        without = f"{found[0]['simple']['mean of the view']:.4f}"
        rows.append(["no model: the mean image of the nearest angle", without, "published", f"`{DEFAULTS}`"])
    return columns, rows


def overview_refused(results: Path, options: Mapping[str, str]) -> str:
    """Which of our rows the first page does not show and why."""
    if _found(results).get("image") and _defaults_on_digits(results):
        return ""
    return "Not shown: what was not measured at a commit with its settings. " + (
        f"Measure anew: `gppvae reproduce accuracy --network image`, `{DEFAULTS}`."
    )


def _defaults_on_digits(results: Path) -> list[dict[str, Any]]:
    """Fits with nothing but a kernel, one per seed, of the commit measured last: their error, and simple answers."""
    path = results / "defaults.json"
    runs = read_results(path)["runs"].values() if path.is_file() else []
    digits = [run for run in runs if run["task"] == "digits" and not why_unclean(run["about"])]
    last = digits[-1]["about"]["commit"] if digits else None
    return [run["questions"]["digits"] for run in digits if run["about"]["commit"] == last]


def peers(results: Path, options: Mapping[str, str]) -> ResultTable:
    """What others report on a task, and ours where it was run; option task."""
    task = options.get("task", "rotated-mnist")
    rows = [[peer.method, peer.value, f"[{peer.source}]({peer.url})", peer.note] for peer in PEERS if peer.task == task]
    if task == "rotated-mnist":
        for network, found in _found(results).items():
            text = f"{mean_and_spread(found['mse'])} ({_seeds(len(found['seeds']))})"
            where = f"`gppvae reproduce accuracy --network {network}`"
            rows.append([f"**gppvae**, networks: {NETWORKS[network]}", f"**{text}**", where, "the published split"])
    return ["method", "value", "source", "note"], rows


def peers_refused(results: Path, options: Mapping[str, str]) -> str:
    """Which of our numbers are not shown beside the peers' and why."""
    return accuracy_refused(results, options) if options.get("task", "rotated-mnist") == "rotated-mnist" else ""


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
    variants, refused = _ablation(results, options.get("study", "best"))
    shown = {name: row for name, row in variants.items() if name not in refused}
    rows = [[name, f"{row['inner']:.5f}", f"{row['train']:.5f}"] for name, row in shown.items()]
    return ["change", "MSE at the inner angle", "training MSE"], rows


def ablation_refused(results: Path, options: Mapping[str, str]) -> str:
    """Which variants are not shown and why."""
    study = options.get("study", "best")
    return told(_ablation(results, study)[1], f"gppvae reproduce ablation {study}")


def _ablation(results: Path, study: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Variants of the file, and why some of them are not shown."""
    path, changes = results / f"ablation_{study}.json", STUDIES[study].variants
    variants: dict[str, Any] = read_results(path)["variants"] if path.is_file() else {}
    refused = {}
    for name, row in variants.items():
        present = recipe_facts(variant_recipe(STUDIES[study], changes[name])) if name in changes else None
        refused[name] = why_stale(row.get("trained"), row.get("recipe"), present)
    return variants, {name: reason for name, reason in refused.items() if reason}


def time_to_accuracy(results: Path, options: Mapping[str, str]) -> ResultTable:
    """Seconds of training until the test error is the paper's, or lower."""
    path = results / "time_to_accuracy.json"
    found: dict[str, Any] = read_results(path) if path.is_file() else {"candidates": {}}
    rows: list[list[str]] = []
    if time_refused(results, options):
        found = {"candidates": {}}
    for name, entry in found["candidates"].items():
        times = [entry[name] for name in ("seconds", "cpu_seconds")]
        if entry["seconds"] is None:
            times = [f"not within {entry[f'trained_{name}']:.0f}" for name in ("seconds", "cpu_seconds")]
        cells = [time if isinstance(time, str) else f"{time:.1f}" for time in times]
        rows.append([name, f"{entry['target_mse']:.4f}", *cells, f"{entry['best_mse']:.4f}"])
    return ["inference, network", "MSE to reach", "seconds", "processor seconds", "least MSE seen"], rows


def time_refused(results: Path, options: Mapping[str, str]) -> str:
    """Why the times are not shown, if they are not."""
    path = results / "time_to_accuracy.json"
    reason = why_unclean(read_results(path)["about"]) if path.is_file() else None
    return told({path.name: reason} if reason else {}, "python benchmarks/time_to_accuracy.py")


def accuracy_refused(results: Path, options: Mapping[str, str]) -> str:
    """Which networks are not shown and why."""
    refused = {}
    for network, content in _accuracy(results).items():
        reason = _accuracy_stale(network, content)
        if reason:
            refused[f"networks: {NETWORKS[network]}"] = reason
    return told(refused, "gppvae reproduce accuracy --seeds 5 --network image (or image-5, paper, paper-5)")


def _accuracy_stale(network: str, content: Mapping[str, Any]) -> str | None:
    return why_stale(content.get("trained"), content.get("recipe"), recipe_facts(recipe_of(network)))


def _accuracy(results: Path) -> dict[str, dict[str, Any]]:
    paths = {network: results / f"accuracy_{network}.json" for network in NETWORKS}
    return {network: read_results(path) for network, path in paths.items() if path.is_file()}


def _found(results: Path) -> dict[str, dict[str, Any]]:
    """Results by network, those that may be shown."""
    return {name: content for name, content in _accuracy(results).items() if not _accuracy_stale(name, content)}


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def mean_and_spread(entry: Mapping[str, float], digits: int = 4) -> str:
    """A mean over seeds with its standard deviation, with at least as many digits as the latter has a first one in.

    The value alone where there is one seed.
    """
    if entry["std"] == 0:
        return f"{entry['mean']:.{digits + 1}f}"
    digits = max(digits, math.ceil(-math.log10(entry["std"])))
    return f"{entry['mean']:.{digits}f} ± {entry['std']:.{digits}f}"
