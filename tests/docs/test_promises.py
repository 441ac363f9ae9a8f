"""The table of promises is that of results/torture.json, whose record says what was attacked, where and how often."""

import re
from pathlib import Path

import pytest

from gppvae.report.record import read_results
from torture import crashes, page

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "torture.json", ROOT / "docs" / "promises.md"


def attack(what: str, tried: int = 3, failed: int = 0) -> dict[str, object]:
    return {"what": what, "tried": tried, "wanted": tried, "refused": 0, "failed": failed}


def content(attacks: list[dict[str, object]]) -> dict[str, object]:
    about = {"commit": "abc", "clean": True, "machine": "M", "python": "3", "versions": {"torch": "2"}}
    return {"about": about, "settings": {"seed": 7}, "total": {"tried": 9, "failed": 2}, "attacks": attacks}


def test_counts_of_one_promise_are_added_up() -> None:
    made = page.table(content([attack("changed .npy files", 1000, 1), attack("changed HDF5 files", 500, 1)]))
    assert "| A damaged array is refused, or read as finite numbers | 1,500 | 2 |" in made
    assert made.count("not tried") == len(page.PROMISES) - 1
    assert made.endswith("9 tries in all, 2 failed. Seed 7, commit abc, M, torch 2, Python 3.")


def test_a_promise_names_what_was_killed_and_nothing_else() -> None:
    """As the name of the attack says, the same for every inference."""
    one, other = (f"SIGKILL of fit, predict{more} and save (exact)" for more in (", encode", ", encode, update"))
    made = page.table(content([attack(other), attack(one)]))
    assert "undisturbed one does; `predict`, `encode`, `save` leave no half results | 6 | 0 |" in made
    assert "`predict`, `encode`, `update`, `save` leave" in page.table(content([attack(other)]))


def test_a_worker_is_no_disk_and_an_attack_without_a_promise_is_told() -> None:
    found = page.by_promise([attack("a killed worker under torchrun (global)"), attack("a failing write (exact)")])
    assert sorted(len(attacks) for attacks in found.values())[-2:] == [1, 1]
    with pytest.raises(ValueError, match="no promise"):
        page.by_promise([attack("something else")])


def test_the_readme_leads_to_the_promises() -> None:
    assert "docs/promises.md" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.skipif(not RESULTS.is_file(), reason="results/torture.json is written by make torture")
def test_the_page_shows_the_file() -> None:
    found, text = read_results(RESULTS), PAGE.read_text("utf-8")
    assert page.filled(text, found) == text
    about = found["about"]
    assert re.fullmatch(r"[0-9a-f]{7,40}", about["commit"]) and about["clean"] is True and about["machine"]
    assert isinstance(found["settings"]["seed"], int) and found["settings"]["share"] == 1.0
    assert all(promise for promise in page.by_promise(found["attacks"]).values()), "every promise was tried"
    named = {name for name in crashes.INFERENCES for row in found["attacks"] if f"({name})" in row["what"]}
    assert named == set(crashes.INFERENCES)
    assert found["total"]["tried"] == sum(row["tried"] for row in found["attacks"])
