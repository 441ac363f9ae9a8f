"""Real processes under torchrun, one thread each."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def torchrun(script: Path, *arguments: object, processes: int = 2, restarts: int = 0) -> subprocess.CompletedProcess:
    """Run a script in several processes that can import the package and the tests; its output as text."""
    paths = [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, f"--max-restarts={restarts}", str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done
