"""Benchmarks are commands, not tests; here is only whether they still fit the package."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = sorted(path.name for path in FOLDER.glob("*.py"))


def test_there_are_benchmarks() -> None:
    assert {"epoch.py", "gp_term.py", "scale.py", "time_to_accuracy.py"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_all_that_a_benchmark_imports_exists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    ran = runpy.run_path(str(FOLDER / name), run_name="imported")  # raises when a name is gone
    assert ran["__doc__"], f"{name} says in its first line what it measures"


def test_the_gradient_that_gp_term_times_is_the_one_of_the_papers_formulas() -> None:
    code = """
from gp_term import FORMS, differences, make_problem
for form in FORMS:
    print(differences(make_problem((60, 3, 4, 2), 0), form)["gppvae"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [float(line) for line in done.stdout.split()]
    assert len(found) == 2 and max(found) < 1e-9
