"""The word list of CONTRIBUTING: words that no text of this repository uses, and their search.

Owns the list, the exceptions and the search in docstrings, comments, string literals, test names
and Markdown outside code. `python -m tests.support.words PATH...` prints each place with the
replacement. Not the list of folders under the rule: see `tests/tidy/test_tidy_words.py`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Hit(NamedTuple):
    """A word that should not be there: its line, the word, what to write instead."""

    line: int
    word: str
    instead: str


EVERYWHERE = {
    r"(?:^|[:;,(.] ?|\bor )else\b(?!:)": "otherwise, or a sentence of its own",
    r"behind": "after, or lag",
    r"no more": "no longer, at most, or none left",
    r"anew": "again, or rebuild",
    r"from (?:there|then) on": "after that, or from that offset",
    r"told": "sent, notified, configured or stated",
    r"hears?|heard": "receives, received",
    r"bury|buries|buried|burial": "expire, expired, expiry",
    r"parked": "delayed",
    r"doomed": "pending delete",
    r"set aside|sets aside": "quarantined (a directory), or reserved",
}
"""Pattern (whole words, in any case) -> the field's term, or what to do."""

IN_CODE = {
    r"nobody|somebody": "name the actor: no client, no broker, the caller",
    r"whom": "name the actor",
    r"who": "name the actor: a program is no person",
    r"news": "change, update or dirty",
    r"obeys?|obeyed|obeying": "applies, applied",
}
"""The same in the product's code and in tests, where the actors are programs."""

EXCEPTIONS = {
    "tell them apart",
    "who-may-lead",
    '"behind"',
}
"""Phrases that others fixed, or that say what they say in plain English."""

SKIPPED = re.compile(r"`[^`\n]*`|<!--.*?-->|https?://\S+")


def searched(text: str, *, code: bool) -> Iterator[tuple[int, str, str]]:
    """Yield (offset, word, instead) for each word of the list in a plain text."""
    text = SKIPPED.sub(lambda found: " " * len(found[0]), text)
    for phrase in EXCEPTIONS:
        text = text.replace(phrase, " " * len(phrase))
    for pattern, instead in {**EVERYWHERE, **(IN_CODE if code else {})}.items():
        whole = pattern if pattern.startswith("(") else rf"\b(?:{pattern})\b"
        for found in re.finditer(whole, text, re.IGNORECASE | re.MULTILINE):
            yield found.start(), " ".join(found[0].split()), instead


def hits_in_markdown(text: str) -> list[Hit]:
    """Return the hits of a page, code blocks and code spans left out."""
    kept = []
    is_code = False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        kept.append("" if is_code or fence else line)
        is_code ^= fence
    page = "\n".join(kept)
    return sorted(
        Hit(page.count("\n", 0, at) + 1, word, instead)
        for at, word, instead in searched(page, code=False)
    )


def hits_in_python(text: str) -> list[Hit]:
    """Return the hits in comments, string literals (f-strings too) and names of tests."""
    hits = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for at, word, instead in searched(token.string, code=True):
                hits.append(Hit(token.start[0] + token.string.count("\n", 0, at), word, instead))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith(
            "test_"
        ):
            name = node.name.replace("_", " ")
            hits += [Hit(node.lineno, word, way) for _, word, way in searched(name, code=True)]
    return sorted(set(hits))


def hits_in(path: Path) -> list[Hit]:
    """Return the hits of a file, in the order of its lines."""
    text = path.read_text(encoding="utf-8")
    return hits_in_markdown(text) if path.suffix == ".md" else hits_in_python(text)


def main() -> int:
    """Print the hits of the files and folders named on the command line; 1 if there is one."""
    count = 0
    for name in sys.argv[1:]:
        root = Path(name)
        files = [root] if root.is_file() else sorted([*root.rglob("*.py"), *root.rglob("*.md")])
        for path in files:
            for hit in hits_in(path):
                count += 1
                print(f"{path}:{hit.line}: {hit.word!r}: write {hit.instead}")
    print(f"{count} words to replace")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
