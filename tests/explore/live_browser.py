"""The browser of the report's tests, pointed at the live page."""

import json
from typing import Any

from report.browser import Browser, wait_for

# The page is up, and the answers to its first questions are drawn: sample, latents, path of the row, covariance.
READY = (
    "document.documentElement.dataset.ready === 'yes'"
    " && document.getElementById('sample-where').textContent !== ''"
    " && document.querySelectorAll('#axis-a option').length > 0"
    " && !document.getElementById('along').hidden"
    " && document.getElementById('covariance-title').textContent !== ''"
)


class LiveBrowser(Browser):
    """A tab with the live page in it."""

    def visit(self, address: str, width: int = 1400, height: int = 1000, scheme: str = "light") -> None:
        """Open an address afresh, and wait until every panel is drawn."""
        self.go(address, READY, width, height, scheme)

    def until(self, condition: str, seconds: float = 30.0) -> None:
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

    def requested(self) -> list[str]:
        """Addresses the page asked for, but for data inside the page itself."""
        sent: list[dict[str, Any]] = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = [params["request"]["url"] for params in sent]
        return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]
