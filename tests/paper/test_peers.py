"""Numbers of other systems: each has a source, and the best one is found."""

import re
from pathlib import Path

from gppvae.paper.peers import PEERS, best

DOCS = Path(__file__).parents[2] / "docs"


def test_every_number_has_a_source() -> None:
    assert len(PEERS) > 20
    for peer in PEERS:
        assert re.fullmatch(r"\d+\.\d+(?: ± \d+\.\d+)?", peer.value), peer
        assert peer.source and peer.url.startswith("https://"), peer
        assert f"<!-- table: peers task={peer.task} -->" in (DOCS / "peers.md").read_text("utf-8")


def test_the_first_entry_is_the_papers_and_the_best_peer_is_another() -> None:
    assert PEERS[0].value == "0.0280 ± 0.0008" and "the paper" in PEERS[0].method
    least = None
    for peer in PEERS:
        if peer.task == "rotated-mnist" and "the paper" not in peer.method:
            value = float(peer.value[:6])
            least = value if least is None or value < least else least
    assert float(best("rotated-mnist").value[:6]) == least


def test_nothing_is_recalled_from_memory() -> None:
    found = [page.name for page in DOCS.rglob("*.md") if "(recalled" in page.read_text("utf-8")]
    assert found == []
