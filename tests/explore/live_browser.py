"""The browser of the report's tests, pointed at the live page."""

import json
from typing import Any

from report.browser import Browser, wait_for

READY = "document.documentElement.dataset.ready === 'yes' && document.getElementById('sample-where').textContent !== ''"


class LiveBrowser(Browser):
    """A tab with the live page in it."""

    def visit(self, address: str, width: int = 1400, height: int = 1000, scheme: str = "light") -> None:
        """Open an address afresh, and wait until the first prediction is drawn."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        wait_for(lambda: self.run("location.href") == "about:blank", 30)
        self.events.clear()
        self.call("Page.navigate", url=address)
        wait_for(lambda: self.run("location.href").startswith("http") and self.run(READY), 30)
        self.until("document.querySelectorAll('#axis-a option').length > 0")

    def until(self, condition: str, seconds: float = 10.0) -> None:
        """Wait until a JavaScript condition holds."""
        wait_for(lambda: bool(self.run(condition)), seconds)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector: str, x: float | None = None, y: float | None = None) -> None:
        """Click an element in its middle, or at a place inside it."""
        left, top = self.place(selector, x, y)
        self.mouse("mousePressed", left, top)
        self.mouse("mouseReleased", left, top)

    def place(self, selector: str, x: float | None = None, y: float | None = None) -> tuple[float, float]:
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.x, b.y, b.width, b.height]; })()"
        )
        return found[0] + (found[2] / 2 if x is None else x), found[1] + (found[3] / 2 if y is None else y)

    def complaints(self) -> list[str]:
        """Everything that the browser said in its console, and every error."""
        self.run("1")  # so that events that are on their way have come
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [str(event["params"]) for event in self.events if event["method"] in kinds]

    def requested(self) -> list[str]:
        """Addresses the page asked for, but for data inside the page itself."""
        sent: list[dict[str, Any]] = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = [params["request"]["url"] for params in sent]
        return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]
