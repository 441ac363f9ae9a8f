"""Tables on the pages come from the results, and the pages in the repository are up to date."""

import json
from pathlib import Path
from typing import Any

import pytest

from gppvae.paper.comparison.setup import recipe_facts
from gppvae.paper.faces.recipes import setup as face_setup
from gppvae.paper.rotated_mnist.recipes import global_recipe, setup
from gppvae.paper.tables import START, TABLES, filled, main, markdown, pages

ROOT = Path(__file__).parents[2]
REGION = "before\n<!-- table: rotated-mnist split=paper network=paper -->\nold\n<!-- end of table -->\nafter\n"


TRAINED = {
    "commits": ["abc"], "clean": True, "machines": ["M"], "settings": [{}], "wall_seconds": [1.0], "cpu_seconds": [1.0],
}  # fmt: skip


def summary(means: list[float], spread: float | None) -> dict[str, Any]:
    return {
        "seeds": list(range(len(means))),
        "mean": sum(means) / len(means),
        "spread": spread,
        "standard_error": 0.0007,
    }


def results() -> dict[str, Any]:
    def method(label: str, **values: Any) -> dict[str, Any]:
        facts = {"note": "", "epochs": {"vae": 60}, "seconds": [60.0, 120.0], "trained": TRAINED}
        return {"label": label, **facts, **values}

    return {
        "methods": {
            "joint": method(
                "GPPVAE-joint", mean_decoded=summary([0.0271, 0.0273], 0.00014), sample_averaged=summary([0.028], None)
            ),
            "mean-image": method("mean image", mean_decoded=summary([0.0780], None), sample_averaged=None),
        },
        "setting": {"setup": setup("paper").facts()},
        "global_recipe": recipe_facts(global_recipe("paper")),
        "tests": {"joint against dis": {"average": {"t_test_p": 0.0123, "wilcoxon_p": 0.0456}}},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "rotated_mnist_paper_paper.json").write_text(json.dumps(results()))
    (tmp_path / "README.md").write_text(REGION)
    (tmp_path / "docs" / "a.md").write_text("<!-- table: rotated-mnist-overview -->\n<!-- end of table -->\n")
    return tmp_path


def test_region_is_replaced_and_the_rest_stays(folder: Path) -> None:
    text = filled(REGION, folder / "results")
    assert text.startswith("before\n<!-- table: rotated-mnist split=paper network=paper -->\n| method |")
    assert text.endswith("<!-- end of table -->\nafter\n")
    assert "old" not in text
    row = next(line for line in text.splitlines() if line.startswith("| GPPVAE-joint"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:5] == ["0.0280 ± 0.0008", "0.0272 ± 0.0001", "0.0280 ± 0.0007", "2"]
    assert cells[6] == "1.5"
    assert "| mean image | \u2013 | 0.0780 ± 0.0007 | \u2013 |" in text
    assert "joint against dis: paired t-test p = 0.012" in text
    assert filled(text, folder / "results") == text


def test_overview_puts_splits_and_networks_side_by_side(folder: Path) -> None:
    results = folder / "results"
    other = json.loads((results / "rotated_mnist_paper_paper.json").read_text())
    del other["methods"]["joint"]
    other["setting"]["setup"] = setup("wide").facts()
    (results / "rotated_mnist_published_wide.json").write_text(json.dumps(other))
    text = filled((folder / "docs" / "a.md").read_text(), folder / "results")
    row = next(line for line in text.splitlines() if line.startswith("| GPPVAE-joint"))
    assert row == "| GPPVAE-joint | 0.0280 ± 0.0008 | 0.0272 ± 0.0001 | \u2013 |"
    assert "| paper split, paper network | published split, wide network |" in text
    assert "| seeds | \u2013 | 1 to 2 | 1 |" in text


CHANGES: dict[str, tuple[list[str], Any, str]] = {
    "no record": (["methods", "joint", "trained"], None, "commit and settings of the training are not recorded"),
    "no cpu": (["methods", "joint", "trained", "cpu_seconds"], None, "commit and settings of the training are not"),
    "changed": (["methods", "joint", "trained", "clean"], False, "trained with changes that are in no commit"),
    "recipe": (["setting", "setup", "kernel"], "RBF(angle)", "the present recipe has other settings (kernel)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_of_unknown_or_other_training_are_refused_in_words(change: str, folder: Path) -> None:
    content, (path, value, reason) = results(), CHANGES[change]
    place = content
    for name in path[:-1]:
        place[name] = dict(place[name])
        place = place[name]
    place[path[-1]] = value
    (folder / "results" / "rotated_mnist_paper_paper.json").write_text(json.dumps(content))
    text = filled(REGION, folder / "results")
    assert "| GPPVAE-joint" not in text and "joint against dis" not in text
    assert "| mean image | " in text, "an answer without a model needs no training"
    assert f"Not shown: GPPVAE-joint ({reason}" in text
    assert "Measure anew: `gppvae reproduce rotated-mnist --split paper --network paper --seeds 5`." in text
    overview = filled((folder / "docs" / "a.md").read_text(), folder / "results")
    assert "| GPPVAE-joint | 0.0280 ± 0.0008 | not shown |" in overview
    assert f"Not shown: paper split with paper network ({reason}" in overview


def test_missing_results_say_how_to_get_them(tmp_path: Path) -> None:
    text = filled(REGION.replace("network=paper", "network=wide"), tmp_path)
    assert "Not run yet: `gppvae reproduce rotated-mnist --split paper --network wide --seeds 5`." in text


def test_faces_of_another_draw_are_a_table_of_their_own(folder: Path) -> None:
    content = results() | {"data": {"name": "photographs", "train": 3, "test": 2, "size": 8, "people": 1}}
    content["setting"] = {"setup": face_setup().facts()}
    (folder / "results" / "faces_faceplace_images_draw2.json").write_text(json.dumps(content))
    options = {"data": "faceplace", "split": "images", "draw": "2"}
    text = TABLES["faces"](folder / "results", options)
    assert text.startswith("photographs: 3 training and 2 test images") and "mean image | \u2013 | 0.0780" in text
    missing = TABLES["faces"](folder / "results", options | {"draw": "3"})
    assert missing == ("Not run yet: `gppvae reproduce faces --split images --network paper --draw 3 --data folder`.")
    assert "--draw" not in TABLES["faces"](folder / "results", options | {"draw": "1"})


def test_command_writes_pages_and_check_only_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(folder), "--check"]) == 1
    assert (folder / "README.md").read_text() == REGION
    assert main(["--root", str(folder)]) == 0
    assert "0.0272" in (folder / "README.md").read_text()
    assert main(["--root", str(folder), "--check"]) == 0
    assert "README.md: out of date" in capsys.readouterr().out


def test_wrong_marks_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="asks for a table 'magic'; there are rotated-mnist"):
        filled("<!-- table: magic -->\n<!-- end of table -->\n", tmp_path)
    with pytest.raises(ValueError, match="to be closed by"):
        filled("<!-- table: rotated-mnist -->\n| a |\n", tmp_path)


def test_markdown_keeps_bars_inside_cells() -> None:
    assert markdown(["a", "b"], [["x|y", "2"]]) == "| a | b |\n| --- | --- |\n| x\\|y | 2 |"


def test_pages_of_the_repository_agree_with_its_results() -> None:
    found = pages(ROOT)
    assert ROOT / "README.md" in found
    for page in found:
        text = page.read_text("utf-8")
        assert filled(text, ROOT / "results") == text, f"{page.name} is out of date; run make tables"
    assert START.search((ROOT / "docs" / "rotated_mnist.md").read_text("utf-8")), "the experiment's page has no table"
    assert set(TABLES) >= {"rotated-mnist", "rotated-mnist-overview"}


def test_the_first_page_shows_fits_with_nothing_but_a_kernel(tmp_path: Path) -> None:
    def run(task: str, error: float, commit: str, clean: bool = True) -> dict:
        question = {"error": error, "simple": {"mean of the view": 0.0585}}
        return {"task": task, "questions": {task: question}, "about": {"commit": commit, "clean": clean}}

    runs = {
        "digits seed 3": run("digits", 0.5, "older"), "digits seed 0": run("digits", 0.25, "newer"),
        "digits seed 1": run("digits", 0.75, "newer"), "digits seed 2": run("digits", 9.0, "newer", clean=False),
        "jura seed 0": run("jura", 0.1, "newer"),
    }  # fmt: skip
    page = "<!-- table: accuracy-overview -->\n<!-- end of table -->\n"
    assert "nothing else" not in filled(page, tmp_path) and "Not shown" in filled(page, tmp_path)
    (tmp_path / "defaults.json").write_text(json.dumps({"runs": runs}))
    # 0.25 and 0.75: the mean is 0.5, the standard deviation 0.25 sqrt(2).
    shown = filled(page, tmp_path)
    assert "| **gppvae**, a kernel and nothing else | **0.5000 ± 0.3536 (2 seeds)** | published |" in shown
    assert "| no model: the mean image of the nearest angle | 0.0585 | published |" in shown
