"""Java's properties syntax: the text of a file -> names and values.

Owns the syntax. Not what the names mean: see `server` and `topic`.
"""

from __future__ import annotations

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = frozenset("0123456789abcdefABCDEF")


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's properties syntax: comments with # or !, = or : or white space between key and
    value, backslash escapes (also \\uXXXX), and lines that a last backslash continues.

    The last of two equal keys wins, as in Java. Any text parses.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        found[_unescape(key)] = _unescape(value)
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    open_line: str | None = None
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(_BLANK)
        if open_line is None and (not line or line[0] in "#!"):
            continue
        joined = (open_line or "") + line
        trailing = len(joined) - len(joined.rstrip("\\"))
        if trailing % 2:
            open_line = joined[:-1]
        else:
            lines.append(joined)
            open_line = None
    if open_line is not None:
        lines.append(open_line)
    return lines


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANK:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        escaped = text[position]
        position += 1
        digits = text[position : position + 4]
        if escaped == "u" and len(digits) == 4 and all(x in _HEX for x in digits):
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
