"""What people install: wheel and sdist are built, installed into an empty environment, and the demo runs from there."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import gppvae
from test_repository import relative_links

ROOT = Path(__file__).parents[1]
DEMO = """
import json
import gppvae
from gppvae.demo import DemoRecipe, run_demo
from gppvae.inference.phase import Phase

tiny = DemoRecipe(
    n_digits=10, n_angles=4, held_out_angle=90.0, kernel="Learned(digit, 2) * Periodic(angle, 360)",
    settings={"latent_dim": 2, "network": "mlp", "pixel_var": 0.05, "batch_size": 8},
    phases=(Phase("global", "global", 2, {"decoder": 1e-2, "prior": 1e-2, "weights": 1e-2}),
            Phase("encoder", "distill", 1, {"encoder": 1e-3})),
)
result = run_demo("demo", 0, tiny, progress=False)
print(json.dumps([gppvae.__file__, gppvae.__version__, sorted(result.mse), result.page.is_file()]))
"""


def run(*words: str | Path, folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run([str(word) for word in words], cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of the repository."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, folder=ROOT)
    return folder


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_runs_the_demo_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """Dependencies are lent by this environment through a .pth file; the package itself comes from the wheel alone."""
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "env", folder=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    inside = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path))
    (inside / "lent.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    offline = ("install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--force-reinstall")
    run(sys.executable, "-m", "pip", "--python", python, *offline, wheel, folder=tmp_path)
    where, version, methods, has_page = json.loads(run(python, "-c", DEMO, folder=tmp_path).splitlines()[-1])
    assert Path(where).is_relative_to(inside) and version == gppvae.__version__
    assert "GPPVAE" in methods and has_page is True
    assert run(python.with_name("gppvae"), "--version", folder=tmp_path) == f"gppvae {gppvae.__version__}"


def test_the_wheel_of_the_sdist_holds_the_same_files(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", folder=unpacked)
    names = [sorted(zipfile.ZipFile(next(folder.glob("*.whl"))).namelist()) for folder in (built, tmp_path / "again")]
    assert names[0] == names[1]
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "gppvae").rglob("*.py")}
    assert ours | {"gppvae/data/threes.png", "gppvae/py.typed"} <= set(names[0])
    assert not [name for name in names[0] if name.startswith(("tests/", "docs/"))]
    for kept in ("README.md", "LICENSE", "NOTICE", "tests/oracles.py", "docs/conf.py", "results/accuracy_image.json"):
        assert (unpacked / kept).is_file(), kept


def test_the_readme_of_the_package_index_has_absolute_links_only(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert relative_links((ROOT / "README.md").read_text("utf-8")), "the README has no relative link to make absolute"
    assert relative_links(text) == []
    (home,) = (url.split(", ")[1] for url in metadata.get_all("Project-URL", []) if url.startswith("Homepage, "))
    assert f"]({home}/blob/v{gppvae.__version__}/" in text


def test_metadata_say_what_is_needed(metadata: Message) -> None:
    needed = metadata.get_all("Requires-Dist", [])
    names = {re.split(r"[ <>=!~;\[(]", line)[0] for line in needed if "extra ==" not in line}
    assert {"torch", "gpytorch", "numpy", "pandas", "pillow"} <= names and "mlxtend" not in names
    assert {"explore", "anndata", "zarr", "onnx", "bench"} <= set(metadata.get_all("Provides-Extra", []))
    assert {url.split(", ")[0] for url in metadata.get_all("Project-URL", [])} >= {"Homepage", "Issues", "Changelog"}
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]


def test_all_files_name_the_same_version_address_and_dependencies(metadata: Message) -> None:
    version = metadata["Version"]
    assert version == gppvae.__version__
    citation, recipe = (ROOT / "CITATION.cff").read_text("utf-8"), (ROOT / "recipe" / "meta.yaml").read_text("utf-8")
    assert f"version: {version}\n" in citation and f'version = "{version}"' in recipe
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (date,) = re.findall(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$", changes, flags=re.MULTILINE)
    assert f'date-released: "{date}"' in citation
    (home,) = (url.split(", ")[1] for url in metadata.get_all("Project-URL", []) if url.startswith("Homepage, "))
    assert f"repository-code: {home}\n" in citation and f"home: {home}\n" in recipe
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = []
    for line in metadata.get_all("Requires-Dist", []):
        if "extra ==" not in line:
            name, bound = re.fullmatch(r"([\w-]+)(.*)", line.replace(" ", "")).groups()  # type: ignore[union-attr]
            wanted.append(f"{renamed.get(name, name)} {bound}")
    run_part = recipe.split("  run:\n")[1].split("\n\n")[0]
    listed = [line.strip().removeprefix("- ") for line in run_part.splitlines()]
    assert sorted(listed) == sorted([*wanted, f"python {metadata['Requires-Python']}"])
