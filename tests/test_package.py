"""What `import gppvae` does, and does not do."""

from __future__ import annotations

import os
import subprocess
import sys

import gppvae


def run(code: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in gppvae.WAITING}
    done = subprocess.run([sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_does_not_wait_for_torch() -> None:
    assert run("import sys, gppvae; print('torch' in sys.modules)") == "False"


def test_every_public_name_is_there() -> None:
    missing = [name for name in gppvae.__all__ if not hasattr(gppvae, name)]
    assert missing == []
    assert not hasattr(gppvae, "no_such_name")


def test_waiting_threads_give_up_their_core_unless_told_otherwise() -> None:
    show = "import os, gppvae; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"
    assert run(show) == "PASSIVE 10000"
    assert run(show, OMP_WAIT_POLICY="ACTIVE") == "ACTIVE None"
    assert run(show, GOMP_SPINCOUNT="7") == "None 7"
