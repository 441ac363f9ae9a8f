"""Processes that are killed at random moments, and disks that fail at every write and rename in turn."""

import builtins
import contextlib
import errno
import functools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gppvae import GPPVAE
from gppvae.training.checkpoint import read_tensors
from tiny import KERNEL, spots
from torture.files import own_error

INFERENCES = ("global", "minibatch", "posterior", "exact", "leave_out")
FAILURES = (errno.ENOSPC, errno.EIO, errno.EACCES)


def estimator(inference: str, epochs: int = 6) -> GPPVAE:
    settings = {"latent_dim": 2, "network": "mlp", "width": 8, "batch_size": 8, "warmup_epochs": 3, "gp_epochs": 3}
    return GPPVAE(KERNEL, inference=inference, epochs=epochs, **settings)


def fit(inference: str, out: Path) -> None:
    """A short fit; one that has ended is left as it is."""
    if not (out / "model.safetensors").exists():
        images, table = spots(4, 6)
        estimator(inference).fit(images, table, out=out, progress=False, checkpoint_seconds=0.0)


def predict(run: Path, out: Path) -> None:
    GPPVAE.load(run).predict(spots(4, 60)[1], n_samples=8, out=out)


def encode(run: Path, out: Path) -> None:
    GPPVAE.load(run).encode(spots(4, 60)[0], return_std=True, out=out)


def impute(run: Path, out: Path) -> None:
    images, table = spots(4, 60)
    images[::2, :3] = np.nan
    GPPVAE.load(run).impute(images, table, n_samples=2, out=out)


def save(run: Path, out: Path) -> None:
    GPPVAE.load(run).save(out)


def update(run: Path, out: Path) -> None:
    images, table = spots(4, 10)
    model = GPPVAE.load(run)
    model.update(images, table)
    model.save(out)


def add_objects(run: Path, out: Path) -> None:
    images, table = spots(4, 6)
    model = GPPVAE.load(run)
    model.add_objects(images[:8], table[:8].assign(spot=["new"] * 6 + ["newer"] * 2))
    model.save(out)


def same_model(a: Path, b: Path) -> bool:
    one, two = (read_tensors(path / "model.safetensors")[0] for path in (a, b))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def same_arrays(a: Path, b: Path) -> bool:
    names = sorted(path.name for path in a.glob("*.npy"))
    return names == sorted(path.name for path in b.glob("*.npy")) and all(
        np.array_equal(np.load(a / name), np.load(b / name)) for name in names
    )


def in_child(work: Callable[[], None]) -> int:
    """Start `work` in a copy of this process; its number."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"in a child: {error!r}", flush=True)
        os._exit(1)


def killed_until_done(work: Callable[[], None], longest: float, rng: np.random.Generator, most: int) -> int:
    """Kill the work again and again at random moments, at most so often, then let it end; how often it was killed.

    The first moment is near the beginning: work that is faster than it was before must not escape all kills.
    """
    kills = 0
    while True:
        child = in_child(work)
        if kills < most:
            time.sleep(rng.uniform(0.0, longest if kills else min(0.05, longest)))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
            continue
        assert os.waitstatus_to_exitcode(status) == 0, "the work failed after a kill"
        return kills


def check_kills(folder: Path, inference: str, rng: np.random.Generator, most: int = 6) -> int:
    """Kill a fit, its answers, what it learns later and a save; compare with undisturbed ones. Kills in all."""
    calm, torn = folder / f"{inference}-calm", folder / f"{inference}-torn"
    started = time.monotonic()
    if not calm.exists():
        fit(inference, calm)
        predict(calm, folder / f"{inference}-calm-predicted")
        encode(calm, folder / f"{inference}-calm-encoded")
        impute(calm, folder / f"{inference}-calm-imputed")
        update(calm, folder / f"{inference}-calm-updated")
        add_objects(calm, folder / f"{inference}-calm-added")
        (folder / f"{inference}-seconds").write_text(str(time.monotonic() - started))
    longest = float((folder / f"{inference}-seconds").read_text())
    shutil.rmtree(torn, ignore_errors=True)
    kills = killed_until_done(lambda: fit(inference, torn), longest, rng, most)
    assert same_model(calm, torn), "the model differs from the undisturbed one"
    assert not list(torn.glob(".*.part")), "parts of dead processes were left"
    for name, work in (("predicted", predict), ("encoded", encode), ("imputed", impute)):
        out = folder / f"{inference}-torn-{name}"
        shutil.rmtree(out, ignore_errors=True)

        def once(work: Any = work, out: Path = out) -> None:
            shutil.rmtree(out, ignore_errors=True)
            work(calm, out)

        kills += killed_until_done(once, 0.5 * longest, rng, 2)
        assert same_arrays(folder / f"{inference}-calm-{name}", out), f"what was {name} differs"
    for name, learn, share in (("saved", save, 0.1), ("updated", update, 0.3), ("added", add_objects, 0.3)):
        saved = folder / f"{inference}-torn-{name}"
        shutil.rmtree(saved, ignore_errors=True)
        write = functools.partial(learn, calm, saved)  # over what the killed ones left
        kills += killed_until_done(write, share * longest, rng, 2)
        undisturbed = calm if learn is save else folder / f"{inference}-calm-{name}"
        assert same_model(undisturbed, saved), f"what was {name} differs"
        assert not list(saved.glob(".*.part")), "parts of dead processes were left"
    return kills


class FailingDisk:
    """Counts writes, flushes and renames below a folder; the one of number `bad` fails.

    Args:
        folder: whose files are meant.  bad: from 0; None lets all pass.  number: of the error.
    """

    def __init__(self, folder: Path, bad: int | None = None, number: int = errno.ENOSPC) -> None:
        self.folder, self.bad, self.number, self.count = str(folder), bad, number, 0

    def _call(self, path: Any, real: Callable[[], Any]) -> Any:
        if str(path).startswith(self.folder):
            self.count += 1
            if self.bad is not None and self.count - 1 == self.bad:
                raise OSError(self.number, os.strerror(self.number), str(path))
        return real()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        opened, replace, fsync, mkdir = builtins.open, os.replace, os.fsync, os.mkdir

        def open_(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if set(mode) & set("wax+"):
                return self._call(file, lambda: opened(file, mode, *rest, **options))
            return opened(file, mode, *rest, **options)

        names: dict[str, Any] = {
            "replace": lambda a, b, **o: self._call(b, lambda: replace(a, b, **o)),
            "fsync": lambda n: self._call(os.readlink(f"/proc/self/fd/{n}"), lambda: fsync(n)),
            "mkdir": lambda p, *r, **o: self._call(p, lambda: mkdir(p, *r, **o)),
        }
        builtins.open = open_  # type: ignore[assignment]
        for name, function in names.items():
            setattr(os, name, function)
        try:
            yield
        finally:
            builtins.open, os.replace, os.fsync, os.mkdir = opened, replace, fsync, mkdir  # type: ignore[assignment]


def check_disk(folder: Path, inference: str, every: int = 1) -> int:
    """Let every write, flush and rename of a fit fail in turn: an error of our own, and the same model afterwards."""
    calm = folder / "calm"
    shutil.rmtree(calm, ignore_errors=True)
    counting = FailingDisk(calm)
    with counting.active():
        fit(inference, calm)
    tried = 0
    for bad in range(0, counting.count, every):
        torn = folder / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        disk = FailingDisk(torn, bad, FAILURES[bad % len(FAILURES)])
        with disk.active():
            try:
                fit(inference, torn)
                raised = None
            except OSError as error:
                raised = error
        assert raised is None or own_error(raised), f"write {bad}: {raised!r}"
        assert raised is not None or same_model(calm, torn), f"write {bad}: no error, and another model"
        fit(inference, torn)
        assert same_model(calm, torn), f"write {bad}: the model differs"
        tried += 1
    return tried
