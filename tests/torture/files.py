"""Models, checkpoints and configurations that are changed at random and signed again, and what may come of them."""

import copy
import json
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

import gppvae
from gppvae import GPPVAE, VAE
from gppvae.data.digest import digest
from gppvae.training import loop
from gppvae.training.checkpoint import FORMAT, read_tensors
from gppvae.training.loop import TrainingError
from tiny import spots

PACKAGE = str(Path(gppvae.__file__).parent)
DEEP = "[" * 100_000 + "]" * 100_000
JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 3, 10**6, 10**30, -0.5, 1e308, 1e-308, float("nan"), float("inf"), "", "x",
    "RBF(angle)", "Learned(spot, 4096)", "a" * 5000, "\ud800", "../..", [], [1], [[]], {}, {"name": "gaussian"},
    [None] * 50, [1e30] * 3,
]  # fmt: skip


def own_error(error: BaseException) -> bool:
    """Whether an error was raised by a statement of the package itself, and reads as one sentence."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error)
    return last.filename.startswith(PACKAGE) and str(last.line).startswith("raise") and 0 < len(text) < 2000


def sign(path: Path, tensors: dict[str, Tensor], text: str) -> None:
    """Write a file whose checksum fits its content."""
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "meta": text, "sha256": digest(plain, text)}
    path.write_bytes(save_safetensors(plain, metadata=header))


def mutated_json(content: Any, rng: np.random.Generator) -> tuple[Any, str]:
    """A copy with one or two places changed, and which."""
    content, told = copy.deepcopy(content), []
    for _ in range(int(rng.integers(1, 3))):
        places = list(_places(content))
        owner, key, path = places[int(rng.integers(len(places)))]
        if not (key in owner if isinstance(owner, dict) else key < len(owner)):
            continue
        action = rng.choice(["replace", "replace", "replace", "delete", "copy"])
        if action == "delete":
            del owner[key]
        elif action == "copy":
            other = places[int(rng.integers(len(places)))]
            owner[key] = copy.deepcopy(other[0][other[1]]) if _has(other[0], other[1]) else None
        else:
            owner[key] = copy.deepcopy(JUNK[int(rng.integers(len(JUNK)))])
        told.append(f"{action} {path}: {str(owner.get(key) if isinstance(owner, dict) else owner)[:60]!r}")
    return content, "; ".join(told)


def _has(owner: Any, key: Any) -> bool:
    return key in owner if isinstance(owner, dict) else key < len(owner)


def _places(content: Any, path: str = "") -> Any:
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(entries)[:60]:
        yield content, key, f"{path}.{key}"
        yield from _places(value, f"{path}.{key}")


def mutated_tensors(tensors: dict[str, Tensor], rng: np.random.Generator) -> tuple[dict[str, Tensor], str]:
    """A copy with one tensor changed, and how."""
    found = {name: value.clone() for name, value in tensors.items()}
    name = sorted(found)[int(rng.integers(len(found)))]
    other = sorted(found)[int(rng.integers(len(found)))]
    x = found[name]
    actions: dict[str, Callable[[], Any]] = {
        "drop": lambda: found.pop(name),
        "rename": lambda: found.update({name + "x": found.pop(name)}),
        "swap": lambda: found.update({name: found[other], other: x}),
        "flatten": lambda: found.update({name: x.reshape(-1)}),
        "unsqueeze": lambda: found.update({name: x.unsqueeze(0)}),
        "longer": lambda: found.update({name: torch.cat([x.reshape(1) if x.ndim == 0 else x] * 2)}),
        "empty": lambda: found.update({name: x.reshape(-1)[:0]}),
        "double": lambda: found.update({name: x.double()}),
        "single": lambda: found.update({name: x.float()}),
        "half": lambda: found.update({name: x.half()}),
        "integer": lambda: found.update({name: torch.zeros_like(x, dtype=torch.int64)}),
        "bool": lambda: found.update({name: x != 0}),
        "nan": lambda: _fill(x, rng, float("nan")),
        "infinity": lambda: _fill(x, rng, float("inf")),
        "huge": lambda: found.update({name: torch.full_like(x, 1e38) if x.is_floating_point() else x}),
        "tiny": lambda: found.update({name: torch.full_like(x, -1e30) if x.is_floating_point() else x}),
        "more": lambda: found.update({"model.more": torch.zeros(3), "weights.7.mean": torch.zeros(2)}),
    }
    action = sorted(actions)[int(rng.integers(len(actions)))]
    actions[action]()
    return found, f"{action} {name}"


def _fill(x: Tensor, rng: np.random.Generator, value: float) -> None:
    if x.is_floating_point() and x.numel():
        x.view(-1)[int(rng.integers(x.numel()))] = value


class Mutations:
    """Changed versions of one file of tensors and JSON.

    Args:
        file: to change; put back by `restore`.  seed: of the changes.
    """

    def __init__(self, file: Path, seed: int) -> None:
        self.file, self.seed, self.original, self.description = file, seed, file.read_bytes(), ""
        self.tensors, self.meta = read_tensors(file)

    def apply(self, number: int) -> None:
        """Write version `number`."""
        rng = np.random.default_rng([self.seed, number])
        tensors, meta, told = self.tensors, self.meta, ""
        if rng.random() < 0.4:
            tensors, told = mutated_tensors(tensors, rng)
        else:
            meta, told = mutated_json(meta, rng)
        text = json.dumps(meta)
        if rng.random() < 0.02:
            text, told = DEEP, "deep JSON"
        self.description = f"seed {self.seed}, number {number}: {told}"
        sign(self.file, tensors, text)

    def restore(self) -> None:
        self.file.write_bytes(self.original)


SMALL: dict[str, Any] = {"latent_dim": 2, "network": "mlp", "width": 4, "batch_size": 16}
KERNELS: dict[str, Any] = {
    "product": "Learned(spot, 2) * Periodic(angle, 360)",
    "sum": "2.0 * FreeForm(spot) + RBF(angle, basis='hilbert', max_inducing=8) + Linear(angle) * Categorical(spot)",
    "groups": [("Learned(spot, 2) * Matern(angle)", 2), (None, 1)],
    "subjects": "RBF(angle) + Categorical(spot) * RBF(angle)",  # with one that was added after training
}


def write_model(kind: str, folder: Path) -> pd.DataFrame:
    """A small model of this kind, saved; the table that it was fitted to."""
    images, table = spots(3, 5)
    if kind == "vae":
        VAE(epochs=1, **SMALL).fit(images, progress=False).save(folder)
        return table
    settings = SMALL | {"latent_dim": None if kind == "groups" else 2}
    model = GPPVAE(KERNELS[kind], epochs=1, warmup_epochs=1, gp_epochs=1, **settings)
    model.fit(images, table, progress=False)
    if kind == "subjects":
        model.add_objects(images[:2], table[:2].assign(spot="new"))
    model.save(folder)
    return table


def check_model(folder: Path, table: pd.DataFrame, described: str) -> str:
    """Load a model that was changed: an error of our own, or finite answers. Says which."""
    kind = VAE if b'"kind\\": \\"vae' in (folder / "model.safetensors").read_bytes()[:20_000] else GPPVAE
    try:
        model = kind.load(folder)
    except ValueError as error:
        assert own_error(error), f"{described}: {error!r}"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{described}: {error!r}") from error
    try:
        if isinstance(model, VAE):
            answers = [model.sample(2)]
        else:
            drawn = model.predict(table.iloc[:3], n_samples=2, include_noise=True)
            answers = [drawn.mean, drawn.std]
    except ValueError as error:  # the columns may have other names now
        assert own_error(error), f"{described}: {error!r}"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{described}: {error!r}") from error
    assert all(np.isfinite(answer).all() for answer in answers), f"{described}: answers are not finite"
    return "finite"


# -- runs that are continued


class Stopped(Exception):
    """Ends a fit right after a checkpoint."""


def _estimator() -> GPPVAE:
    settings = {"latent_dim": 2, "network": "mlp", "width": 4, "batch_size": 8, "warmup_epochs": 2, "gp_epochs": 2}
    return GPPVAE("Learned(spot, 2) * Periodic(angle, 360)", inference="minibatch", epochs=3, **settings)


def unfinished_run(folder: Path) -> None:
    """A run that was stopped in its last phase."""
    original = loop.Trainer.checkpoint

    def stop(self: loop.Trainer, state: Any, meta: dict[str, Any], due: bool) -> None:
        original(self, state, meta, True)
        if (meta["phase"], meta["epoch"]) == (2, 1):
            raise Stopped

    loop.Trainer.checkpoint = stop  # type: ignore[method-assign]
    try:
        _estimator().fit(*spots(3, 4), out=folder, progress=False)
    except Stopped:
        pass
    finally:
        loop.Trainer.checkpoint = original  # type: ignore[method-assign]


def _continued(folder: Path, described: str, resume: bool = False) -> str:
    images, table = spots(3, 4)
    try:
        if resume:
            model = GPPVAE.resume(folder, images, table, progress=False)
        else:
            model = _estimator().fit(images, table, out=folder, progress=False)
    except (ValueError, TypeError, TrainingError) as error:
        assert own_error(error), f"{described}: {error!r}"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{described}: {error!r}") from error
    assert np.isfinite(model.predict(table, 2).mean).all(), f"{described}: answers are not finite"
    return "finite"


def check_checkpoint(folder: Path, seed: int, count: int) -> int:
    """Continue a run from checkpoints that were changed; how many were refused."""
    shutil.rmtree(folder, ignore_errors=True)
    unfinished_run(folder / "start")
    mutations, refused = Mutations(folder / "start" / "checkpoint.safetensors", seed), 0
    for number in range(count):
        mutations.apply(number)
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(folder / "start", run)
        refused += _continued(run, mutations.description) == "refused"
    return refused


def check_config(folder: Path, seed: int, count: int) -> int:
    """Continue a run whose config.json was changed; how many were refused."""
    shutil.rmtree(folder, ignore_errors=True)
    unfinished_run(folder / "start")
    original, refused = json.loads((folder / "start" / "config.json").read_bytes()), 0
    texts = [b"[]", b"NaN", b"", b"{}", b'{"settings": []}', b'{"settings": {"given": 3}}', b"\xff\xfe", DEEP.encode()]
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        changed, told = mutated_json(original, rng)
        text = texts[number] if number < len(texts) else json.dumps(changed).encode()
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(folder / "start", run)
        (run / "config.json").write_bytes(text)
        described = f"config, seed {seed}, number {number}: {told}"
        refused += _continued(run, described, resume=bool(number % 2)) == "refused"
    return refused
