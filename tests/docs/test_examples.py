"""Every public name has an example in its docstring, and all examples give what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import types
from pathlib import Path

import pytest

import gppvae
from gppvae import likelihoods

FINDER = doctest.DocTestFinder(recurse=False)
PACKAGE = Path(gppvae.__file__).parent
MODULES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    for file in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in file.read_text("utf-8")
]
# What has no example: a version is text, and these likelihoods need a network, or are chosen by a setting.
WITHOUT = {"__version__", "PIXEL_VARS", "Perceptual", "VGG19", "ScaledGaussian", "make_likelihood", "own_likelihoods"}
WITHOUT |= {"perceptual_from_file"}
NAMES = sorted({*gppvae.__all__, *likelihoods.__all__} - WITHOUT)


def named(name: str) -> object:
    return getattr(gppvae, name) if name in gppvae.__all__ else getattr(likelihoods, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name: str) -> None:
    found = FINDER.find(named(name), name)
    assert found and found[0].examples, f"{name} needs an example in its docstring"


def documented(module: types.ModuleType) -> list[doctest.DocTest]:
    """Docstrings with examples of a module's own classes and functions, methods included."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    inside = [member for cls in own if inspect.isclass(cls) for member in vars(cls).values() if callable(member)]
    found = [test for value in [module, *own, *inside] for test in FINDER.find(value, getattr(value, "__name__", ""))]
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tests = documented(importlib.import_module(name))
    assert tests
    for test in tests:
        report: list[str] = []
        failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        assert tried and not failed, "".join(report)
