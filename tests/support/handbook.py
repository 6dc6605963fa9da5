"""The command lines of the operator's pages, so that a test can run each of them as it stands.

Owns which lines there are: all of the ``sh`` blocks of ``docs/operating``, and nothing else is one.
What stands in the place of an address or a folder, and the order, are the test's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "operating"

LANGUAGES = {"sh", "text", "json", "yaml", "ini", "properties", "dockerfile", "python"}
"""What a block of a page may be; all but the first one are not for a shell."""

PROGRAMS = "tidelog|python3?|pip|uv|make|sh|curl|spark-submit|systemctl|docker"
COMMAND = re.compile(rf"\s*(?:[$#] )?(?:[\w./-]*/)?(?:{PROGRAMS})\s")
"""What begins a line that an operator would type."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    place: str
    language: str
    text: str

    def lines(self) -> list[str]:
        """Its lines; lines that a backslash joins are one."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(folder: Path = PAGES) -> Iterator[Block]:
    """Every fenced block of every page, in order."""
    for page in sorted(folder.glob("*.md")):
        text = page.read_text()
        for found in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            number = text.count("\n", 0, found.start()) + 1
            yield Block(f"{page.name}:{number}", found[1], found[2])


class CommandLines:
    """The lines that have not been run yet, each with the places where it stands."""

    def __init__(self, all_blocks: Iterable[Block], not_run: Iterable[str] = ()) -> None:
        self._left: dict[str, list[str]] = {}
        for block in all_blocks:
            for line in block.lines() if block.language == "sh" else ():
                self._left.setdefault(re.sub(r"\s+", " ", line), []).append(block.place)
        for line in not_run:
            del self._left[line]

    def take(self, *words: str) -> str:
        """Return the only line that has all these words, which counts as run from now on.

        A line that is the words, and nothing else, goes before others.
        """
        found = [line for line in self._left if all(word in line for word in words)]
        found = [line for line in found if line == " ".join(words)] or found
        assert len(found) == 1, f"{words} are the words of {found or 'no line'} in the pages"
        del self._left[found[0]]
        return found[0]

    def left(self) -> list[str]:
        """The lines that no call has taken, each with its first place."""
        return [f"{places[0]}: {line}" for line, places in self._left.items()]


def filled(line: str, values: Mapping[str, str]) -> str:
    """Put real addresses and folders into a line, the longest placeholders first."""
    for former in sorted(values, key=len, reverse=True):
        line = line.replace(former, values[former])
    assert "…" not in line, f"no value for the … of: {line}"
    return line


def block_with(language: str, *words: str) -> str:
    """Return the text of the only block of this language that has all these words."""
    (found,) = [
        block.text
        for block in blocks()
        if block.language == language and all(word in block.text for word in words)
    ]
    return found
