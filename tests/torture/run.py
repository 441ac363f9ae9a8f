"""`make torture`: attack everything that is promised, for half an hour; results/torture.json and docs/promises.md.

Seeds are printed and stand in the file; `--seed` repeats a run. What is done once here for each kind is also done,
shorter, by the tests.
"""

import argparse
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gppvae.report.record import write_results
from gppvae.training.folder import provenance
from processes import torchrun
from torture import crashes, files, inputs, page

ROOT = Path(__file__).parents[2]
OUT, PAGE = ROOT / "results" / "torture.json", ROOT / "docs" / "promises.md"


class Tally:
    """How often each thing was tried, refused and failed; at most `seconds` are spent on each.

    Args:
        seed: of everything.  share: of the full counts.  seconds: longest time for one part.
    """

    def __init__(self, seed: int, share: float, seconds: float) -> None:
        self.seed, self.share, self.seconds = seed, share, seconds
        self.rows: list[dict[str, Any]] = []

    def repeat(self, what: str, full: int, attack: Callable[[np.random.Generator, int], Any]) -> None:
        """Call `attack` so often; it returns a number of tries, or that and how many were refused, or "refused"."""
        started, tried, refused, failed, first = time.monotonic(), 0, 0, 0, None
        wanted = max(1, round(full * self.share))
        number = 0
        while tried < wanted and time.monotonic() - started < self.seconds:
            rng = np.random.default_rng([self.seed, len(self.rows), number])
            try:
                found = attack(rng, number)
            except Exception as error:
                failed += 1
                first = first or f"number {number}: {type(error).__name__}: {str(error)[:500]}"
                traceback.print_exc(limit=-2)
                found = 1
            more, no = (
                found if isinstance(found, tuple) else (found if isinstance(found, int) else 1, found == "refused")
            )
            tried, refused = tried + more, refused + no
            number += 1
        seconds = round(time.monotonic() - started, 1)
        row = {"what": what, "tried": tried, "wanted": wanted, "refused": refused, "failed": failed}
        self.rows.append(row | {"seconds": seconds, "first_failure": first})
        print(f"{what}: {tried} tried, {refused} refused, {failed} failed ({seconds:.0f} s)", flush=True)


def attack_inputs(tally: Tally, folder: Path) -> None:
    """10^5 changed inputs in all."""
    inputs.write_data(folder)
    for kind in [*files.KERNELS, "vae"]:
        place = folder / kind
        table = files.write_model(kind, place)
        changes = files.Mutations(place / "model.safetensors", tally.seed)

        def model_file(
            _: np.random.Generator, number: int, changes: Any = changes, place: Path = place, table: Any = table
        ) -> str:
            changes.apply(number)
            return files.check_model(place, table, changes.description)

        tally.repeat(f"model files with a right checksum and changed content ({kind})", 2500, model_file)
    batch = lambda check: lambda _, n: (20, check(folder / "runs", tally.seed + n, 20))  # noqa: E731
    tally.repeat(
        "checkpoints with a right checksum and changed content, continued", 1000, batch(files.check_checkpoint)
    )
    tally.repeat("changed config.json, continued", 1000, batch(files.check_config))
    tally.repeat("changed .npy files", 14000, lambda rng, _: inputs.check_array(folder, rng))
    tally.repeat("changed Zarr arrays", 1500, lambda rng, _: inputs.check_zarr(folder, rng))
    tally.repeat("changed HDF5 files", 1500, lambda rng, _: inputs.check_hdf5(folder, rng))
    tally.repeat("changed image files", 14000, lambda rng, _: inputs.check_image(folder, rng))
    tally.repeat("random kernel texts", 54000, lambda rng, _: inputs.check_kernel(rng))
    tally.repeat("random constructor arguments", 3000, lambda rng, _: inputs.check_settings(rng))
    tally.repeat("random command lines", 3000, lambda rng, n: inputs.check_command(folder, rng, n))


def attack_processes(tally: Tally, folder: Path) -> None:
    for inference in crashes.INFERENCES:
        kills = lambda rng, _, name=inference: crashes.check_kills(folder, name, rng)  # noqa: E731
        tally.repeat(f"SIGKILL of fit, predict, encode, impute, update, add_objects and save ({inference})", 60, kills)
    for inference in crashes.INFERENCES:
        disk = lambda _, __, name=inference: crashes.check_disk(folder / name, name)  # noqa: E731
        tally.repeat(f"a failing write, flush or rename, each in turn ({inference})", 1, disk)


def attack_workers(tally: Tally, folder: Path) -> None:
    script = Path(__file__).parent / "worker.py"
    for inference in ("global", "minibatch"):
        torchrun(script, "calm", folder / inference, inference)
        for what in ("killed", "stopped"):

            def one(_: np.random.Generator, __: int, what: str = what, inference: str = inference) -> int:
                shutil.rmtree(folder / inference / what, ignore_errors=True)
                torchrun(script, what, folder / inference, inference, restarts=1)
                assert crashes.same_model(folder / inference / "calm", folder / inference / what), "models differ"
                return 1

            tally.repeat(f"a {what} worker under torchrun ({inference})", 3, one)


PARTS = {"inputs": attack_inputs, "processes": attack_processes, "workers": attack_workers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31, help="of everything; by default the time")
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts")
    parser.add_argument("--seconds", type=float, default=240.0, help="longest time for one line of the result")
    parser.add_argument("--parts", default=",".join(PARTS), help="inputs, processes, workers")
    parser.add_argument("--out", type=Path, default=OUT)
    words = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("gppvae").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    about = provenance()  # of the code that is attacked, whatever is changed while it runs
    print(f"seed {words.seed}, commit {about['commit']}{'' if about['clean'] else ', changed'}", flush=True)
    tally = Tally(words.seed, words.share, words.seconds)
    folder = Path(tempfile.mkdtemp(prefix="gppvae-torture-"))
    try:
        for part in words.parts.split(","):
            (folder / part).mkdir()
            PARTS[part](tally, folder / part)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    total = {name: sum(row[name] for row in tally.rows) for name in ("tried", "refused", "failed")}
    settings = {"seed": words.seed, "share": words.share, "seconds": words.seconds, "parts": words.parts}
    write_results(words.out, {"settings": settings, "total": total, "attacks": tally.rows}, about)
    if words.out == OUT:
        page.write(PAGE, words.out)
    print(f"{total['tried']} tried, {total['failed']} failed; {os.path.relpath(words.out)}")
    sys.exit(1 if total["failed"] else 0)


if __name__ == "__main__":
    main()
