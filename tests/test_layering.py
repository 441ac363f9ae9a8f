"""Imports point downwards, the library stands without the paper, and no file can make the package run foreign code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "gppvae"
TOP_TO_BOTTOM = (
    "cli",
    "bench",
    "paper",
    "demo",
    "explore",
    "report",
    "estimator",
    "training",
    "inference",
    "models",
    "prior",
    "kernels",
    "nets",
    "likelihoods",
    "data",
)
ON_DEMAND = {"bench": ("cli",), "paper": ("cli", "bench")}  # part -> who may import it; cli inside functions alone
EXEMPT = ("gppvae/__init__.py", "gppvae/__main__.py")  # they only re-export and start
MAX_LINES = 700
LONG_MODULES = {"gppvae/paper/faces/heads.py": "one drawing: its parts are of no use apart from each other"}
BASELINES = re.compile("cvae|livae", re.IGNORECASE)  # methods of the paper's comparison, unknown to the library
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
RUNS_CODE = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}
LOADS_PICKLES = {"torch.load", "torch.serialization.load", "numpy.load", "pandas.read_pickle"}


def imported_modules(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of every import, also those inside functions and `if` blocks."""
    folder = path.split("/")[:-1]  # of gppvae/prior/lowrank.py: [gppvae, prior]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            base = [*start, node.module] if node.module else start
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def part_of(path: str) -> str:
    """The part of the layout that a file such as gppvae/prior/lowrank.py or gppvae/cli.py belongs to."""
    return path.split("/")[1].removesuffix(".py")


def upward_imports(source: str, path: str) -> list[str]:
    """Describe every import in `source` that points up the layout, or to a part the layout does not name."""
    own = part_of(path)
    if own not in TOP_TO_BOTTOM:
        return [f"{path}: '{own}' is not a part of the layout in tests/test_layering.py"]
    problems = []
    for line, name in imported_modules(ast.parse(source), path):
        package, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if package != "gppvae" or target == "__version__":
            continue
        if target not in TOP_TO_BOTTOM:  # the package itself re-exports parts of every height
            if own != "cli":
                problems.append(f"{path}:{line}: '{own}' imports '{name}' from outside the layout")
        elif TOP_TO_BOTTOM.index(target) < TOP_TO_BOTTOM.index(own):
            problems.append(f"{path}:{line}: '{own}' imports '{name}' from above itself")
    return problems


def on_demand_imports(source: str, path: str) -> list[str]:
    """Describe every import of the paper or the benchmarks by others than may, or that is run when `cli` is loaded."""
    tree = ast.parse(source)
    inside = {
        line
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in function.body
        for line, _ in imported_modules(statement, path)
    }
    own = part_of(path)
    problems = []
    for line, name in imported_modules(tree, path):
        target = next((part for part in ON_DEMAND if f"{name}.".startswith(f"gppvae.{part}.")), own)
        if target == own or (own in ON_DEMAND[target] and (own != "cli" or line in inside)):
            continue
        problems.append(f"{path}:{line}: imports '{name}'")
    return problems


def dotted_name(node: ast.AST, aliases: dict[str, str]) -> str:
    """The full name of `np.load`-like expressions, with the file's import aliases resolved; else ''."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def import_aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> full name, for every absolute import in the file."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return aliases


def may_unpickle(call: ast.Call, name: str) -> bool:
    """Whether a call of a loader can unpickle what runs code.

    numpy.load does so only where allow_pickle is given; torch.load only reads tensors where weights_only=True is.
    """
    safe = {"numpy.load": ("allow_pickle", False), "torch.load": ("weights_only", True)}
    if name not in safe:
        return name in LOADS_PICKLES
    option, harmless = safe[name]
    given = [keyword.value for keyword in call.keywords if keyword.arg == option]
    if not given:
        return name == "torch.load"  # older versions of it unpickle everything by default
    return any(not (isinstance(value, ast.Constant) and value.value is harmless) for value in given)


def unsafe_uses(source: str, path: str) -> list[str]:
    """Describe every import of a pickler and every call that runs or unpickles what it is given."""
    tree = ast.parse(source)
    aliases = import_aliases(tree)
    problems = [
        f"{path}:{line}: imports '{name}'"
        for line, name in imported_modules(tree, path)
        if name.split(".")[0] in PICKLERS
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted_name(node.func, aliases)
            if name in RUNS_CODE or may_unpickle(node, name):
                problems.append(f"{path}:{node.lineno}: calls '{name}'")
    return problems


def modules() -> dict[str, str]:
    """Path relative to src/ -> source, of every module of the package."""
    return {p.relative_to(PACKAGE.parent).as_posix(): p.read_text("utf-8") for p in sorted(PACKAGE.rglob("*.py"))}


def test_imports_point_down_the_layout() -> None:
    checked = {path: source for path, source in modules().items() if path not in EXEMPT}
    assert checked, f"no module found in {PACKAGE}"
    assert [p for path, source in checked.items() for p in upward_imports(source, path)] == []


def test_no_module_is_too_long() -> None:
    lengths = {path: len(source.splitlines()) for path, source in modules().items()}
    assert lengths.keys() >= LONG_MODULES.keys()
    assert {path: n for path, n in lengths.items() if n > MAX_LINES and path not in LONG_MODULES} == {}


def test_only_a_command_imports_the_paper_and_the_benchmarks() -> None:
    found = modules()
    assert {part_of(path) for path in found} >= ON_DEMAND.keys()
    assert [p for path, source in found.items() for p in on_demand_imports(source, path)] == []


def test_the_library_knows_nothing_of_the_papers_baselines() -> None:
    library = {path: source for path, source in modules().items() if part_of(path) != "paper"}
    assert library, f"no module found in {PACKAGE}"
    assert [path for path, source in library.items() if BASELINES.search(source)] == []


def test_nothing_runs_or_unpickles_what_a_file_says() -> None:
    found = modules()
    assert found, f"no module found in {PACKAGE}"
    assert [p for path, source in found.items() for p in unsafe_uses(source, path)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gppvae/prior/lowrank.py", "from gppvae.training.loop import run"),
        ("gppvae/prior/lowrank.py", "from ..estimator import GPPVAE"),
        ("gppvae/prior/lowrank.py", "from .. import models"),
        ("gppvae/paper/faces/heads.py", "from ... import cli"),
        ("gppvae/report/run.py", "from gppvae.paper.livae import neighbours"),
        ("gppvae/report/run.py", "from gppvae import demo"),
        ("gppvae/nets/conv.py", "def f():\n    import gppvae.kernels.base as base"),
        ("gppvae/likelihoods.py", "from .nets import conv"),
        ("gppvae/data/table.py", "from gppvae import GPPVAE"),
        ("gppvae/data/table.py", "import gppvae"),
        ("gppvae/helpers.py", "import math"),
    ],
)
def test_checker_reports_upward_imports(path: str, source: str) -> None:
    assert len(upward_imports(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gppvae/training/loop.py", "from gppvae.prior.lowrank import nll\nfrom .phases import Phase"),
        ("gppvae/prior/lowrank.py", "import torch\nfrom . import statistics\nfrom ..kernels import base"),
        ("gppvae/paper/faces/heads.py", "from ..mnist import load_mnist\nfrom gppvae import data"),
        ("gppvae/demo.py", "from .report.run import write_report"),
        ("gppvae/report/page.py", "from gppvae import __version__"),
        ("gppvae/cli.py", "from gppvae import GPPVAE"),
    ],
)
def test_checker_accepts_downward_imports(path: str, source: str) -> None:
    assert upward_imports(source, path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gppvae/cli.py", "from gppvae.paper.commands import reproduce_app"),
        ("gppvae/cli.py", "if True:\n    from gppvae import paper"),
        ("gppvae/report/run.py", "def f():\n    from ..paper import tables"),
        ("gppvae/__init__.py", "import gppvae.paper"),
        ("gppvae/cli.py", "from gppvae.bench.commands import bench_app"),
        ("gppvae/report/run.py", "def f():\n    from gppvae.bench import task"),
        ("gppvae/paper/tables.py", "from gppvae.bench.page import table"),
    ],
)
def test_checker_reports_imports_of_what_is_loaded_on_demand(path: str, source: str) -> None:
    assert len(on_demand_imports(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gppvae/cli.py", "def reproduce():\n    from gppvae.paper.commands import reproduce_app"),
        ("gppvae/cli.py", "from gppvae.papers import x"),
        ("gppvae/paper/tables.py", "from gppvae.paper.pages import faces"),
        ("gppvae/cli.py", "def bench():\n    from gppvae.bench.commands import bench_app"),
        ("gppvae/bench/faces.py", "from gppvae.paper.faces.data import task\nfrom gppvae.bench.task import Task"),
    ],
)
def test_checker_accepts_the_command_and_the_parts_themselves(path: str, source: str) -> None:
    assert on_demand_imports(source, path) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('model.pt')",
        "import torch as th\nth.load('model.pt', weights_only=False)",
        "import torch\ntorch.load('model.pt', weights_only=some_setting)",
        "from torch import load as restore\nrestore('model.pt')",
        "import numpy as np\nnp.load('a.npy', allow_pickle=True)",
        "import pandas as pd\npd.read_pickle('a.pkl')",
        "value = eval('1 + 1')",
        "exec('x = 1')",
    ],
)
def test_checker_reports_unsafe_uses(source: str) -> None:
    assert len(unsafe_uses(source, "gppvae/data/table.py")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import re\nre.compile('a')",
        "import numpy as np\nnp.load('a.npy')\nnp.load('b.npy', allow_pickle=False)",
        "from safetensors.torch import load\nload(b'')",
        "import json\njson.load(stream)",
        "import torch\ntorch.load('weights.pth', weights_only=True)",
    ],
)
def test_checker_accepts_harmless_look_alikes(source: str) -> None:
    assert unsafe_uses(source, "gppvae/data/table.py") == []
