"""Drives a headless Chromium over the DevTools protocol, on the loopback interface only."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find_browser() -> str | None:
    """Path of the first installed Chromium-like browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One tab; `events` collects everything the browser reports about it."""

    def __init__(self, executable: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._count = 0
        self._session: str | None = None
        command = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._socket = self._connect(profile / "DevToolsActivePort")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _connect(self, port_file: Path) -> websocket.WebSocket:
        wait_for(lambda: port_file.exists() and port_file.read_text().count("\n") >= 1, 60)
        port, path = port_file.read_text().split("\n")[:2]
        url = f"ws://127.0.0.1:{port}{path}"
        return websocket.create_connection(url, timeout=30, suppress_origin=True, http_no_proxy=["127.0.0.1"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; events that arrive meanwhile are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") != self._count:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method} failed: {answer['error']['message']}")
            else:
                return answer["result"]

    def open(self, path: Path, width: int = 1100, height: int = 900, scheme: str = "light") -> None:
        """Show a local file and wait until its turntables are drawn."""
        drawn = "[...document.querySelectorAll('output')].every(output => output.textContent)"
        self.go(path.as_uri(), f"document.readyState === 'complete' && {drawn}", width, height, scheme)

    def go(self, address: str, ready: str, width: int, height: int, scheme: str) -> None:
        """Open an address afresh, forget the events of earlier pages, and wait for a condition in the new one."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        # By way of an empty page: the old one would pass for the new one where both have the same address.
        self.call("Page.navigate", url="about:blank")
        wait_for(lambda: self._holds("location.href === 'about:blank' && document.readyState === 'complete'"), 30)
        self.events.clear()
        self.call("Page.navigate", url=address)
        wait_for(lambda: self._holds(f"location.href !== 'about:blank' && {ready}"), 60)

    def _holds(self, condition: str) -> bool:
        """Whether a condition holds; not while the page is being exchanged, when it has no elements or no scripts."""
        try:
            return bool(self.run(condition))
        except RuntimeError:
            return False

    def complaints(self) -> list[str]:
        """Everything that the browser said in its console, and every error, as far as it has come."""
        self.run("1")  # so that events that are on their way have come
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [str(event["params"]) for event in self.events if event["method"] in kinds]

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script} failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key as a user would."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Send a "mousePressed", "mouseMoved" or "mouseReleased" event of the left button."""
        button = {"button": "left", "buttons": 1, "clickCount": 0 if kind == "mouseMoved" else 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def screenshot(self, path: Path) -> None:
        """Save the whole page, not only the visible part, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser that this object started."""
        self._session = None
        self.call("Browser.close")
        self._socket.close()
        self._process.wait(timeout=30)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Return as soon as `condition()` is true; raise if it is not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the browser was not ready within {seconds} s")
        time.sleep(0.05)
