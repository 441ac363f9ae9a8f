"""Result tables on the pages, made from results/*.json: `python -m gppvae.paper.tables`.

A page marks where a table belongs with a comment line `<!-- table: name key=value ... -->` and ends it with
`<!-- end of table -->`. What lies between is replaced; nobody writes numbers by hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gppvae.data.atomic import write_bytes
from gppvae.paper.comparison.methods import NO_MODEL
from gppvae.paper.comparison.setup import recipe_facts
from gppvae.paper.faces import recipes as face_recipes
from gppvae.paper.pages import accuracy_tables
from gppvae.paper.pages import faces as face_page
from gppvae.paper.pages import rotated_mnist as digit_page
from gppvae.paper.pages.comparison import Words, mse_rows, mse_text
from gppvae.paper.pages.perceptual import perceptual, perceptual_choice, perceptual_refused
from gppvae.paper.provenance import told, why_stale
from gppvae.paper.rotated_mnist import recipes as digit_recipes
from gppvae.report.page import DASH
from gppvae.report.record import read_results

REGION = re.compile(
    r"^(?P<start><!-- table: (?P<name>[\w-]+)(?P<options>(?: [\w-]+=[\w.-]+)*) -->)\n"
    r".*?^(?P<end><!-- end of table -->)$",
    re.MULTILINE | re.DOTALL,
)
START = re.compile(r"^<!-- table: .*$", re.MULTILINE)
Make = Callable[[Path, Mapping[str, str]], str]


def rotated_mnist(results: Path, options: Mapping[str, str]) -> str:
    """All methods of one comparison; options: split, network."""
    split, network = options.get("split", "paper"), options.get("network", "paper")
    content = _results(results, split, network)
    if content is None:
        return f"Not run yet: `{_digits_command(split, network)}`."
    refused = _digits_refused(content, network)
    return _comparison(content, digit_page.WORDS, refused, _digits_command(split, network))


def faces(results: Path, options: Mapping[str, str]) -> str:
    """All methods of one comparison; options: data (heads or faceplace), split, network, draw of the split."""
    data, split = options.get("data", "heads"), options.get("split", "images")
    network, draw = options.get("network", "paper"), options.get("draw", "1")
    other = [network] * (network != "paper") + [f"draw{draw}"] * (draw != "1")
    path = results / ("_".join(["faces", data, split, *other]) + ".json")
    command = f"gppvae reproduce faces --split {split} --network {network}"
    command += f" --draw {draw}" * (draw != "1") + " --data folder" * (data == "faceplace")
    if not path.is_file():
        return f"Not run yet: `{command}`."
    content = read_results(path)
    data_facts = content["data"]
    about = (
        f"{data_facts['name']}: {data_facts['train']} training and {data_facts['test']} test images of "
        f"{data_facts['size']} x {data_facts['size']} pixels, {data_facts['people']} people."
    )
    recipe = face_recipes.global_recipe(photographs=data == "faceplace")
    refused = refused_methods(content, face_recipes.setup(network).facts(), recipe_facts(recipe))
    return f"{about}\n\n{_comparison(content, face_page.WORDS, refused, command)}"


def refused_methods(content: Mapping[str, Any], setup: Any, recipe: Any) -> dict[str, str]:
    """Why rows of a comparison are not shown, by method; simple answers without a model always are.

    Args:
        content: of the file.  setup: shared settings of the present recipe.  recipe: that of the global row.
    """
    found = {}
    for name, method in content["methods"].items():
        if name in NO_MODEL:
            continue
        own = (content.get("global_recipe"), recipe) if name == "global" else (content["setting"]["setup"], setup)
        found[name] = why_stale(method.get("trained"), *own)
    return {name: reason for name, reason in found.items() if reason}


def _comparison(content: Mapping[str, Any], words: Words, refused: Mapping[str, str], command: str) -> str:
    """Errors of the methods that may be shown, the paired tests in words, and what is not shown."""
    labels = {content["methods"][name]["label"]: reason for name, reason in refused.items()}
    methods = {name: method for name, method in content["methods"].items() if name not in refused}
    pairs = {name: test for name, test in content["tests"].items() if not {*name.split(" against ")} & {*refused}}
    table = markdown(*mse_rows({**content, "methods": methods}, words)) if methods else ""
    tests = _tests_told(pairs)
    return "\n\n".join(part for part in (table, tests, told(labels, command)) if part)


def _tests_told(pairs: Mapping[str, Any]) -> str:
    tests = [
        f"{name}: paired t-test p = {test['average']['t_test_p']:.2g}, "
        f"Wilcoxon p = {test['average']['wilcoxon_p']:.2g} over images."
        for name, test in pairs.items()
    ]
    return " ".join(tests)


def rotated_mnist_overview(results: Path, options: Mapping[str, str]) -> str:
    """Paper against ours, those splits and networks that were run."""
    pairs = [(split, network) for split in ("paper", "published") for network in ("paper", "wide")]
    found = {pair: _results(results, *pair) for pair in pairs}
    contents = {pair: content for pair, content in found.items() if content}
    if not contents:
        return f"Not run yet: `{_digits_command(*pairs[0])}`."
    refused = {pair: _digits_refused(content, pair[1]) for pair, content in contents.items()}
    labels = {name: method["label"] for content in contents.values() for name, method in content["methods"].items()}
    columns = ["method", "the paper", *(f"{split} split, {network} network" for split, network in contents)]
    rows = []
    for name, label in labels.items():
        cells = ["not shown" if name in refused[pair] else _mean_of(contents[pair], name) for pair in contents]
        rows.append([label, digit_page.WORDS.paper(name), *cells])
    table = markdown(columns, [*rows, ["seeds", DASH, *(_n_seeds(content) for content in contents.values())]])
    reasons = {
        f"{split} split with {network} network": reason
        for (split, network), found in refused.items()
        for reason in sorted(set(found.values()))
    }
    return "\n\n".join(part for part in (table, told(reasons, "gppvae reproduce rotated-mnist ...")) if part)


def _n_seeds(content: Mapping[str, Any]) -> str:
    counts = {len(method["mean_decoded"]["seeds"]) for method in content["methods"].values()}
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))


def _written(make: Callable[[Path, Mapping[str, str]], accuracy_tables.ResultTable], refused: Make) -> Make:
    """The Markdown of a table of columns and rows, and what is not shown; without both, that nothing was run."""

    def text(results: Path, options: Mapping[str, str]) -> str:
        (columns, rows), why = make(results, options), refused(results, options)
        return "\n\n".join([markdown(columns, rows)] * bool(rows) + [why] * bool(why)) or "Not run yet."

    return text


TABLES: dict[str, Make] = {
    "rotated-mnist": rotated_mnist,
    "rotated-mnist-overview": rotated_mnist_overview,
    "faces": faces,
    "accuracy": _written(accuracy_tables.accuracy, accuracy_tables.accuracy_refused),
    "accuracy-overview": _written(accuracy_tables.accuracy_overview, accuracy_tables.overview_refused),
    "peers": _written(accuracy_tables.peers, accuracy_tables.peers_refused),
    "coverage": _written(accuracy_tables.coverage, accuracy_tables.accuracy_refused),
    "new-objects": _written(accuracy_tables.new_objects, accuracy_tables.accuracy_refused),
    "ablation": _written(accuracy_tables.ablation, accuracy_tables.ablation_refused),
    "time-to-accuracy": _written(accuracy_tables.time_to_accuracy, accuracy_tables.time_refused),
    "perceptual": _written(perceptual, perceptual_refused),
    "perceptual-choice": _written(perceptual_choice, perceptual_refused),
}


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def filled(text: str, results: Path) -> str:
    """The page with every marked region made anew from the results."""
    if len(START.findall(text)) != len(REGION.findall(text)):
        raise ValueError("expected every '<!-- table: ... -->' line to be closed by '<!-- end of table -->'; close it")

    def made(region: re.Match[str]) -> str:
        name = region["name"]
        if name not in TABLES:
            raise ValueError(f"the page asks for a table {name!r}; there are {', '.join(TABLES)}")
        options = dict(word.split("=", 1) for word in region["options"].split())
        return f"{region['start']}\n{TABLES[name](results, options)}\n{region['end']}"

    return REGION.sub(made, text)


def pages(root: Path) -> list[Path]:
    """README.md, the documentation pages and the paper about the software."""
    found = [root / "README.md", *sorted((root / "docs").glob("*.md")), root / "joss" / "paper.md"]
    return [page for page in found if page.is_file()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the tables of all pages; with --check only say which are out of date. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gppvae.paper.tables", description=main.__doc__)
    parser.add_argument("--root", type=Path, default=Path("."), help="folder of README.md, docs/ and results/")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when a page is out of date")
    wanted = parser.parse_args(arguments)
    stale = []
    for page in pages(wanted.root):
        text = page.read_text("utf-8")
        new = filled(text, wanted.root / "results")
        if new != text:
            stale.append(page)
            if not wanted.check:
                write_bytes(page, new.encode())
    for page in stale:
        print(f"{page}: {'out of date' if wanted.check else 'tables made anew'}")
    return 1 if stale and wanted.check else 0


def _results(results: Path, split: str, network: str) -> dict[str, Any] | None:
    path = results / f"rotated_mnist_{split}_{network}.json"
    return read_results(path) if path.is_file() else None


def _digits_command(split: str, network: str) -> str:
    return f"gppvae reproduce rotated-mnist --split {split} --network {network} --seeds 5"


def _digits_refused(content: Mapping[str, Any], network: str) -> dict[str, str]:
    recipe = recipe_facts(digit_recipes.global_recipe(network))
    return refused_methods(content, digit_recipes.setup(network).facts(), recipe)


def _mean_of(content: Mapping[str, Any], name: str) -> str:
    if name not in content["methods"]:
        return DASH
    return mse_text(content["methods"][name]["mean_decoded"])


if __name__ == "__main__":
    raise SystemExit(main())
