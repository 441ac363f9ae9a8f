"""A fit under torchrun whose second process is killed, or stopped for a while. Arguments: what, folder, inference."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from shared_fit import die_after, fit

from gppvae.training.distributed import current_world
from gppvae.training.loop import Trainer

STOPPED_SECONDS = 3.0


def stop_after(epochs: int) -> None:
    """Let the second process stop itself when that many epochs are done; a child of it lets it go on."""
    if current_world().rank != 1:
        return
    log, parent = Trainer.log, os.getpid()

    def last_log(self: Trainer, row: dict[str, Any]) -> None:
        log(self, row)
        if len(self.history) == epochs:
            if os.fork() == 0:
                time.sleep(STOPPED_SECONDS)
                os.kill(parent, signal.SIGCONT)
                os._exit(0)
            os.kill(parent, signal.SIGSTOP)

    Trainer.log = last_log  # type: ignore[method-assign]


if __name__ == "__main__":
    what, folder, inference = sys.argv[1:]
    {"killed": die_after, "stopped": stop_after, "calm": lambda epochs: None}[what](3)
    fit(inference, Path(folder) / what)
