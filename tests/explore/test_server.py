"""The server of the live page answers the page alone: token, host, origin, sizes, headers; and it writes nothing."""

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from explore.conftest import TOKEN, Served
from gppvae.explore.server import HEADERS, STATIC, LiveServer

JSON = {"Content-Type": "application/json"}


def send(
    served: Served, path: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=30)
    connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


def ask(served: Served, name: str, asked: Any, **headers: str) -> tuple[int, bytes]:
    status, _, content = send(served, f"/{TOKEN}/ask/{name}", json.dumps(asked).encode(), **(JSON | headers))
    return status, content


def test_the_page_and_its_files_come_with_the_policy(served: Served) -> None:
    for name in ("", *(path.name for path in STATIC.iterdir())):
        status, headers, content = send(served, f"/{TOKEN}/{name}")
        assert status == 200 and content == (STATIC / (name or "index.html")).read_bytes()
        assert {key: headers[key.lower()] for key in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_nothing_is_inline() -> None:
    page = (STATIC / "index.html").read_text()
    assert " style=" not in page and "<style" not in page and " on" + "click=" not in page
    assert page.count("<script") == 1 and '<script type="module" src="app.js"></script>' in page
    for script in STATIC.glob("*.js"):
        text = script.read_text().replace("http://www.w3.org/2000/svg", "")  # the name of a format
        assert not any(
            word in text for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "//www", "http")
        )


@pytest.mark.parametrize(
    "path", ["/", "/other/", "/other/ask/meta", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/ask/meta", "/favicon.ico"]
)
def test_without_the_token_there_is_nothing(served: Served, path: str) -> None:
    status, headers, content = send(served, path)
    assert status == 404 and "token" in json.loads(content)["error"]
    assert headers["content-security-policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.1.5", "[::2]", ""]
)
def test_other_hosts_are_refused(served: Served, host: str) -> None:
    assert send(served, f"/{TOKEN}/ask/meta", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:99"])
def test_own_names_are_taken(served: Served, host: str) -> None:
    assert send(served, f"/{TOKEN}/ask/meta", Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"])
def test_other_origins_are_refused(served: Served, origin: str) -> None:
    assert ask(served, "scatter", {}, Origin=origin)[0] == 403


def test_own_origin_is_taken(served: Served) -> None:
    host = f"127.0.0.1:{served.server.port}"
    assert ask(served, "scatter", {}, Origin=f"http://{host}", Host=host)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "../answers.py",
        "..%2fanswers.py",
        "%2e%2e/answers.py",
        "static/app.js",
        "answers.py",
        "index.html%00",
        "ask",
        "ask/..",
    ],
)
def test_no_path_leads_out(served: Served, path: str) -> None:
    status, _, content = send(served, f"/{TOKEN}/{path}")
    assert status in (404, 405) and b"import" not in content


def test_wrong_requests_get_a_sentence(served: Served) -> None:
    status, content = ask(served, "frame", {"row": {"spot": "nobody", "angle": 1.0}})
    assert status == 400 and "known from training" in json.loads(content)["error"]
    assert ask(served, "no_such", {})[0] == 404
    assert ask(served, "frame", [1])[0] == 400
    frame = f"/{TOKEN}/ask/frame"
    assert send(served, frame, b"{", **JSON)[0] == 400
    assert send(served, frame, b"[" * 100_000, **JSON)[0] == 400
    assert send(served, frame, b"\xff\xfe", **JSON)[0] == 400
    assert send(served, frame, b"row=1", **{"Content-Type": "text/plain"})[0] == 415
    assert send(served, frame)[0] == 405
    assert send(served, frame, b"{}", method="PUT", **JSON)[0] == 405
    assert send(served, frame, b" " * (1 << 20) + b"{}", **JSON)[0] == 413


def test_it_listens_on_this_machine_only(served: Served) -> None:
    assert served.server._socket.getsockname()[0] == "127.0.0.1"
    assert served.server.address == f"http://127.0.0.1:{served.server.port}/{TOKEN}/"


def test_tokens_differ_and_are_long(served: Served) -> None:
    made = [LiveServer(served.answers) for _ in range(2)]
    tokens = {server.token for server in made}
    for server in made:
        server._socket.close()
    assert len(tokens) == 2 and min(map(len, tokens)) >= 22


def test_a_port_in_use_is_a_sentence(served: Served) -> None:
    with pytest.raises(OSError, match=f"expected a free port on this machine, got {served.server.port}"):
        LiveServer(served.answers, served.server.port)


def test_nothing_is_written(served: Served) -> None:
    def listing(folder: Path) -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.parent.rglob("*"))}

    before = listing(served.case.folder)
    start = json.loads(send(served, f"/{TOKEN}/ask/meta")[2])["start"]
    for name, asked in (
        ("frame", {"row": start, "draws": 4}),
        ("scatter", {}),
        ("path", {"row": start, "column": "angle"}),
    ):
        assert ask(served, name, asked)[0] == 200
    assert listing(served.case.folder) == before
