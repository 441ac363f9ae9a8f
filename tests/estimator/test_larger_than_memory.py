"""Memory follows the batch, not the data: a process of its own works through a file many times its budget."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROWS, PIXELS = 3_000, 8192  # 23 MiB as bytes, 94 MiB as the float32 that the network sees
BUDGET = 30 << 20
SCRIPT = Path(__file__).parent / "larger_than_memory.py"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory is measured on Linux only")
def test_memory_does_not_follow_the_data(tmp_path: Path) -> None:
    data = np.lib.format.open_memmap(tmp_path / "y.npy", mode="w+", dtype=np.uint8, shape=(ROWS, PIXELS))
    data[:] = np.arange(PIXELS, dtype=np.uint8)
    data.flush()
    paths = [str(SCRIPT.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    # glibc's threshold for handing memory back grows by itself up to 32 MiB, which would be counted; a set one stays.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
    settings = os.environ | allocator | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(SCRIPT), str(tmp_path / "y.npy"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    grown = json.loads(done.stdout.splitlines()[-1])
    assert grown < BUDGET, f"grew by {grown / 2**20:.0f} MiB"
