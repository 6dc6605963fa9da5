"""JAAS strings in Kafka's syntax: ``sasl.jaas.config`` of PLAIN and SCRAM.

Owns the text ``CLASS FLAG NAME=VALUE … ;`` and which entries are accepted. No sentence repeats a
value: it may be a password. Not what a server does with the users: see `network`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_CHARACTERS = 1_000_000
"""Of one string: 10,000 users of PLAIN with names and passwords of 40 characters each."""

PLAIN, SCRAM = "PLAIN", "SCRAM"

MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": PLAIN,
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM,
}
FLAGS = ("required", "requisite", "sufficient", "optional")

USER_OPTION = "user_"
"""``user_NAME="PASSWORD"``: a user of a listener with PLAIN."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>//[^\n]*|/\*.*?\*/)
        | (?P<open>/\*)
        | "(?P<quoted>(?:[^"\\\n]|\\.)*)"
        | '(?P<single>(?:[^'\\\n]|\\.)*)'
        | (?P<mark>[=;])
        | (?P<word>[^\s=;"']+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class JaasEntry(NamedTuple):
    """One login module with its options, in the order of the text."""

    kind: str
    """PLAIN or SCRAM."""

    options: dict[str, str]

    def __repr__(self) -> str:
        # A log line or a traceback may have it: no value of an option.
        return f"JaasEntry({self.kind}, {sorted(self.options)})"

    @property
    def login(self) -> tuple[str, str] | None:
        """The name and password of a client, or None."""
        if "username" not in self.options or "password" not in self.options:
            return None
        return self.options["username"], self.options["password"]

    @property
    def users(self) -> dict[str, str]:
        """The users of a listener with PLAIN, and their passwords."""
        return {
            name.removeprefix(USER_OPTION): value
            for name, value in self.options.items()
            if name.startswith(USER_OPTION) and name != USER_OPTION
        }


def parse(text: str) -> JaasEntry | str:
    """Return the entry of a string, or why it is refused."""
    if len(text) > MOST_CHARACTERS:
        return f"a JAAS string has over {MOST_CHARACTERS} characters"
    tokens = _tokens(text)
    if tokens is None:
        return "a JAAS string has a quote without its end, or a character that it may not have"
    if not tokens:
        return "a JAAS string is empty"
    if tokens[-1] != (False, ";"):
        return "a JAAS string must end with ';'"
    if (False, ";") in tokens[:-1]:
        return "a JAAS string must have one login module"
    names = [value for _, value in tokens[:-1]]
    if not names or names[0] not in MODULES:
        return f"a JAAS string must name one of these login modules: {', '.join(MODULES)}"
    if len(names) < 2 or names[1].lower() not in FLAGS:
        return "a JAAS string needs a flag after its login module, such as required"
    options = _options(tokens[2:-1])
    if options is None:
        return 'a JAAS string must have NAME="VALUE" for each option, and each option once'
    return JaasEntry(MODULES[names[0]], options)


def _tokens(text: str) -> list[tuple[bool, str]] | None:
    """Return words, marks and quoted texts; the flag says which are quoted."""
    found: list[tuple[bool, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match["open"]:
            return None
        position = match.end()
        quoted = match["single"] if match["quoted"] is None else match["quoted"]
        if quoted is not None:
            found.append((True, re.sub(r"\\(.)", _unescaped, quoted, flags=re.DOTALL)))
        plain = match["mark"] or match["word"]
        if plain is not None:
            found.append((False, plain))
    return found


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])


def _options(tokens: list[tuple[bool, str]]) -> dict[str, str] | None:
    if len(tokens) % 3:
        return None
    options: dict[str, str] = {}
    for (is_quoted, name), mark, value in zip(tokens[::3], tokens[1::3], tokens[2::3], strict=True):
        is_mark = not is_quoted and name in "=;"
        if is_mark or mark != (False, "=") or value in ((False, "="), (False, ";")):
            return None
        if name in options:
            return None
        options[name] = value[1]
    return options
