"""Citations in code and documents: each page, promise, decision and KIP that is named exists.

A page has its path from the root, a promise its section in `docs/promises.md`, a decision its
record in `docs/decisions`, a KIP its table or its row in `docs/kips.md`. That promises name their
tests: see `test_tidy_promises.py`; that the rules of KIPs do: see `test_tidy_kips.py`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.repository import ROOT, text_of, tracked
from tests.support.rules import cited_numbers

PAGES = sorted(tracked("docs/*.md"))
CODE = [
    *tracked("src/*.py"),
    *tracked("src/*.txt"),
    *tracked("tests/*.py"),
    *tracked("benchmarks/*.py"),
    *tracked("examples/*.py"),
]
CITING = [*CODE, *tracked("*.md")]
PROMISED = 34
DECISIONS = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("*.md")}
RENAMED = {"design/design.md", "spark.md", "order-checker.md", "walkthrough.md"}


def known_kips(page: str) -> set[int]:
    """The KIPs that have a table of their own or a row; a row may be of several."""
    found = re.findall(r"^## KIP-(\d+)", page, re.MULTILINE)
    for row in re.findall(r"^\| (\d+(?:, \d+)*) \|", page, re.MULTILINE):
        found += row.split(", ")
    return {int(number) for number in found}


KIPS = known_kips((ROOT / "docs" / "kips.md").read_text())


def cited_pages(text: str) -> set[str]:
    """Pages that a text names by their path from the root, and pages of the design by any path."""
    return set(re.findall(r"(?<![\w/.-])docs/[\w/.-]+?\.md\b", text))


def cited_decisions(text: str) -> set[str]:
    """The numbers of decision records that a text names."""
    return set(re.findall(r"\bdecisions?[ /](\d{4})\b", text))


def nowhere(text: str) -> list[str]:
    """What a text cites and the repository does not have."""
    promises, kips = cited_numbers(text)
    lost = [page for page in sorted(cited_pages(text)) if not (ROOT / page).exists()]
    lost += [f"decision {number}" for number in sorted(cited_decisions(text) - DECISIONS)]
    lost += [f"promise {number}" for number in sorted(promises) if not 1 <= number <= PROMISED]
    lost += [f"KIP-{number}" for number in sorted(kips - KIPS)]
    lost += re.findall(r"[Tt]he design(?:'s|,| has| says)|\bdesign, \"|\b[Ii]ssue (?:\d|\")", text)
    lost += [page for page in sorted(RENAMED) if re.search(rf"(?<![\w/-]){re.escape(page)}", text)]
    return lost


@pytest.mark.parametrize("path", CITING, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_cited_is_there(path: Path) -> None:
    if path != Path(__file__):
        assert nowhere(text_of(path)) == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("see docs/design/levels.md, promise 20 and decision 0015", []),
        ("Promises 14 to 17 and 19", []),
        ("see docs/design/no-such-page.md", ["docs/design/no-such-page.md"]),
        ("docs/decisions/0999 and decision 0998", ["decision 0998", "decision 0999"]),
        ("promise 35", ["promise 35"]),
        ("promises 7 to 36", ["promise 35", "promise 36"]),
        ("KIP-516 and KIP-101", []),
        ("KIP-9999", ["KIP-9999"]),
        ('Source: the design, "Levels"', ["the design,"]),
        ('KIP-253; design, "Groups"', ['design, "']),
        ("a bound (issue 11)", ["issue 1"]),
        ("as spark.md has it", ["spark.md"]),
    ],
)
def test_a_citation_of_nothing_is_found(text: str, lost: list[str]) -> None:
    assert nowhere(text) == lost


FILES = {path.relative_to(ROOT).as_posix() for path in tracked()}
ENDINGS = {name[at + 1 :] for name in FILES for at, letter in enumerate(name) if letter == "/"}


def modules_nowhere(text: str) -> list[str]:
    """The modules that a page names by the end of their path, and that the repository lacks."""
    named = re.findall(r"`((?:\w+/)+\w+\.py)(?:::\w+)?`", text)
    return [name for name in named if name not in FILES | ENDINGS]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "decisions" not in page.parts],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    assert modules_nowhere(text_of(page)) == []


def test_a_module_that_is_nowhere_is_found() -> None:
    assert modules_nowhere("`storage/epochs.py` and `storage/no_such.py`") == ["storage/no_such.py"]


def test_pages_of_the_design_are_linked_from_somewhere() -> None:
    """A reader finds a page only by a link from another page."""
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in [*PAGES, ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
        for link in re.findall(r"\]\(([^)\s#:]+)", page.read_text())
        if (page.parent / link).resolve() != page
    }
    assert [page.name for page in PAGES if "design" in page.parts and page not in linked] == []


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    """Not to pages that only `make docs` writes: a reader of the repository has none of them."""
    assert broken_links(page, page.read_text()) == []


def broken_links(page: Path, text: str) -> list[str]:
    """The links of a page, without code, to files or folders that git does not have."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)\s#]+)", text)
    there = FILES | {parent.as_posix() for name in FILES for parent in Path(name).parents}
    return [link for link in links if within(page.parent / link) not in there]


def within(path: Path) -> str:
    resolved = Path(os.path.normpath(path))
    return resolved.relative_to(ROOT).as_posix() if resolved.is_relative_to(ROOT) else ""


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](design/wire.md#tags), [b](decisions) and [c](../README.md)", []),
        ("`[x](no.md)` and [web](https://kafka.apache.org/)", []),
        ("[d](generated/modules.md)", ["generated/modules.md"]),
        ("[e](../../elsewhere.md)", ["../../elsewhere.md"]),
    ],
)
def test_a_broken_link_is_found(text: str, broken: list[str]) -> None:
    assert broken_links(ROOT / "docs" / "kips.md", text) == broken
