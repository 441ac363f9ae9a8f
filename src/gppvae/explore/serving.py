"""Runs the live page until it is interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import webbrowser
from collections.abc import Callable
from pathlib import Path

from gppvae.estimator import GPPVAE
from gppvae.explore.sources import Source


def check_installed() -> None:
    """Raise ValueError with the install command unless the server's packages are installed."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"gppvae explore needs {' and '.join(missing)}; type: pip install 'gppvae[explore]'")


def serve(
    run: Path, model: GPPVAE, source: Source, port: int, browser: bool, announce: Callable[[str], None] = print
) -> None:
    """Announce the address, open it in the browser if `browser`, and serve until Ctrl-C."""
    from gppvae.explore.answers import Answers
    from gppvae.explore.server import LiveServer

    title = run.resolve().name.encode("utf-8", "replace").decode()
    server = LiveServer(Answers(model, source, title, str(run)), port)
    announce(server.address)
    if browser:
        webbrowser.open(server.address)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
