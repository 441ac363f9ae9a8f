"""The server of the live page: on this machine only, protected by a random token."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gppvae.data.words import one_line
from gppvae.explore.answers import Answers

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HOST = "127.0.0.1"
OWN_NAMES = {"127.0.0.1", "localhost", "[::1]"}
MAX_REQUEST, MAX_FILES = 1 << 20, 96 << 20  # bytes of a request, without and with base64 files
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Rejects requests that do not come from the page itself, and adds security headers to all responses.

    A foreign page whose name resolves to this machine (DNS rebinding) sends its name as Host. A cross-origin request
    from another tab sends its Origin. Neither knows the token.

    Args:
        app: to protect.  token: the first part of every path.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        rejection = self._rejection(request)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        await (self.app if rejection is None else rejection)(scope, receive, with_headers)

    def _rejection(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if _name(host) not in OWN_NAMES:
            return _error("expected localhost or 127.0.0.1 in the address", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _error("expected a request from the page itself", 403)
        first = request.url.path.lstrip("/").split("/")[0]
        if not secrets.compare_digest(first.encode(), self.token.encode()):
            return _error("expected the address that `gppvae explore` printed, with its token", 404)
        return None


def make_app(answers: Answers, token: str) -> ASGIApp:
    """The ASGI application; every path begins with the token."""
    handlers: dict[str, Callable[[Any], Any]] = {
        "frame": answers.frame,
        "colour": answers.colour,
        "scatter": answers.scatter,
        "path": answers.path,
        "covariance": answers.covariance,
        "add": answers.add,
    }

    async def meta(request: Request) -> Response:
        return JSONResponse(await anyio.to_thread.run_sync(answers.meta))

    async def ask(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in handlers:
            return _error("there is no such request", 404)
        if not request.headers.get("content-type", "").startswith("application/json"):
            return _error("expected JSON", 415)
        body = await _body(request, MAX_FILES if name == "add" else MAX_REQUEST)
        if body is None:
            return _error("the request is too large", 413)
        try:
            asked = json.loads(body)
            if not isinstance(asked, dict):
                raise ValueError(f"expected a JSON object, got {type(asked).__name__}")
            result = await anyio.to_thread.run_sync(handlers[name], asked)
        except (ValueError, TypeError, RecursionError) as error:
            return _error(one_line(str(error)) or type(error).__name__, 400)
        if isinstance(result, bytes):
            return Response(result, media_type="application/octet-stream")
        return JSONResponse(result)

    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in KINDS}

    async def file(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in files:  # only files that were read at startup
            return _error("there is no such file", 404)
        return Response(files[name], media_type=KINDS[Path(name).suffix])

    routes = [
        Route(f"/{token}/", file),
        Route(f"/{token}/ask/meta", meta),
        Route(f"/{token}/ask/{{name}}", ask, methods=["POST"]),
        Route(f"/{token}/{{name}}", file),
    ]
    return Guard(Starlette(routes=routes), token)


class LiveServer:
    """The live page on a port of this machine.

    Args:
        answers: to requests.  port: 0 for a free one.  token: part of the address; random when None.
    """

    def __init__(self, answers: Answers, port: int = 0, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(18)
        # With an explicit protocol, asyncio disables Nagle's algorithm, which costs 40 ms per frame.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen()  # a browser that connects before `run` waits instead of failing
        except OSError as error:
            self._socket.close()
            raise OSError(
                f"expected a free port on this machine, got {port} ({error.strerror}); choose another"
            ) from None
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            make_app(answers, self.token),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Serve until `stop` or Ctrl-C."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return."""
        self._server.should_exit = True


def _name(host: str) -> str:
    """A Host header without the port."""
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.split(":")[0]


async def _body(request: Request, most: int) -> bytes | None:
    """The body of a request, or None if it is larger than `most` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _error(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status)
