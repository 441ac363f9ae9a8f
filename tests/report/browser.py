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
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=media)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.as_uri())
        address = json.dumps(path.as_uri())
        drawn = "[...document.querySelectorAll('output')].every(output => output.textContent)"
        ready = f"location.href === {address} && document.readyState === 'complete' && {drawn}"
        wait_for(lambda: self.run(ready), 30)

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
