"""Rules of ``ssl.principal.mapping.rules``: the name in a client's certificate -> its principal.

Owns Kafka's syntax: rules separated by commas, each ``DEFAULT`` or ``RULE:PATTERN/REPLACEMENT/``
with ``L`` or ``U`` at its end for small or capital letters. The first rule whose pattern matches
the whole name decides. Not how the name is read from a certificate: see `network`.

A pattern takes the time that its author gives it, as in Kafka: it is the operator's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_CHARACTERS = 10_000
MOST_RULES = 100
MOST_NAME_CHARACTERS = 1_000
"""Of a distinguished name that patterns are tried on: a client chooses what stands there."""

DEFAULT = "DEFAULT"

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<to>(?:\\.|[^\\/])*)/"
    r"(?P<case>[LU]?))\s*(?:,|\Z)"
)


@dataclass(frozen=True, slots=True)
class MappingRule:
    """One rule; without a pattern it is DEFAULT, which takes the name as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return what a name becomes, or None where the rule is not about it."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        found = re.sub(r"\$(\d)", lambda group: match[int(group[1])] or "", self.replacement)
        if self.case == "L":
            return found.lower()
        return found.upper() if self.case == "U" else found


def parse(text: str) -> tuple[MappingRule, ...] | str:
    """Return the rules of a configuration, or why they are refused; an empty one is DEFAULT."""
    if len(text) > MOST_CHARACTERS:
        return f"ssl.principal.mapping.rules has over {MOST_CHARACTERS} characters"
    rules: list[MappingRule] = []
    position = 0
    while position < len(text.rstrip()):
        match = _RULE.match(text, position)
        if match is None or len(rules) == MOST_RULES:
            return (
                f"ssl.principal.mapping.rules: rule {len(rules) + 1} must be DEFAULT or "
                f"RULE:PATTERN/REPLACEMENT/[LU], and there may be {MOST_RULES}"
            )
        position = match.end()
        if match["default"]:
            rules.append(MappingRule(None))
            continue
        replacement = re.sub(r"\\(.)", r"\1", match["to"])
        try:
            pattern = re.compile(match["pattern"].replace("\\/", "/"))
        except re.error:
            return f"ssl.principal.mapping.rules: the pattern of rule {len(rules) + 1} is none"
        named = [int(number) for number in re.findall(r"\$(\d)", replacement)]
        if max(named, default=0) > pattern.groups:
            return f"ssl.principal.mapping.rules: rule {len(rules) + 1} has no group {max(named)}"
        rules.append(MappingRule(pattern, replacement, match["case"]))
    return tuple(rules) or (MappingRule(None),)


def mapped(rules: tuple[MappingRule, ...], name: str) -> str | None:
    """Return the name of the principal, or None where no rule is about it: then the client is
    refused, as in Kafka. So is a name that is too long for the rules, or that becomes empty."""
    if len(name) > MOST_NAME_CHARACTERS:
        return None
    for rule in rules:
        found = rule.apply(name)
        if found is not None:
            return found or None
    return None
