"""Real processes under torchrun, one thread each."""

import os
import subprocess
import sys
import threading
from pathlib import Path

TESTS = Path(__file__).parent
LIMIT_SECONDS = 240.0


def torchrun(
    script: Path | str, *arguments: object, processes: int = 2, restarts: int = 0, check: bool = True
) -> subprocess.CompletedProcess:
    """Run a script, or "-m" and a module, in several processes that can import the package and the tests.

    Past the time limit the launcher is asked to end, so that its workers end with it. Unless `check` is False, failing
    is an error.

    Returns:
        The ended launcher, with its output as text.
    """
    paths = [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, f"--max-restarts={restarts}", str(script), *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=settings) as launched:
        limit = threading.Timer(LIMIT_SECONDS, launched.terminate)
        limit.start()
        output, errors = launched.communicate()
        limit.cancel()
    assert not check or launched.returncode == 0, errors[-4000:]
    return subprocess.CompletedProcess(command, launched.returncode, output, errors)
