"""The paper about the software has the parts that JOSS asks for, and its citations exist."""

import re
from pathlib import Path

JOSS = Path(__file__).parents[2] / "joss"
TEXT = (JOSS / "paper.md").read_text("utf-8")


def test_head_and_sections() -> None:
    head = TEXT.split("---")[1]
    for field in ("title:", "tags:", "authors:", "affiliations:", "date:", "bibliography: paper.bib"):
        assert field in head
    headings = re.findall(r"^# (.+)$", TEXT, flags=re.MULTILINE)
    assert headings[:2] == ["Summary", "Statement of need"] and headings[-1] == "References"


def test_citations_exist_and_are_used() -> None:
    cited = set(re.findall(r"@(\w+)", TEXT.split("---", 2)[2]))
    assert cited == set(re.findall(r"^@\w+\{(\w+),$", (JOSS / "paper.bib").read_text("utf-8"), flags=re.MULTILINE))


def test_its_length_is_that_of_a_joss_paper() -> None:
    assert 250 < len(TEXT.split("---", 2)[2].split()) < 1000


def test_numbers_come_from_results() -> None:
    """Decimal numbers stand in the table that `make tables` fills, and nowhere else."""
    outside = re.sub(r"<!-- table:.*?<!-- end of table -->", "", TEXT.split("---", 2)[2], flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", outside) == []
