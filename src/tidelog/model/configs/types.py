"""Definitions of configurations: types, checks, and the parsing of a text to a value or a refusal.

Owns the classes. Not the rows: see `rows`; not the order of precedence: see `resolve`.
Source of the numbers: the published protocol (DescribeConfigs v1+: config type and source).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from enum import Enum, IntEnum
from typing import Any

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed value; None when the configuration has no default and is not set."""

MAX_INT16 = 2**15 - 1
MAX_TEXT_BYTES = MAX_INT16
"""The longest value: Kafka's protocol has no longer strings, so no response could show it."""

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


class ConfigType(IntEnum):
    """The type of a value, by its number in DescribeConfigs v3+."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, by its number in DescribeConfigs v1+."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class Update(Enum):
    """Whether a broker's configuration can change while it runs (Kafka's update modes)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(frozen=True, slots=True)
class Between:
    """A number from ``low`` to ``high``, both included; None leaves that side open.

    ``also`` is one number outside of that which is allowed too.
    """

    low: float | None = None
    high: float | None = None
    also: float | None = None

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        if not isinstance(value, int | float) or value == self.also:
            return None
        if self.low is not None and value < self.low:
            return f"it must be at least {_plain(self.low)}{self._or_also}"
        if self.high is not None and value > self.high:
            return f"it must be at most {_plain(self.high)}{self._or_also}"
        return None

    @property
    def _or_also(self) -> str:
        return "" if self.also is None else f" or {_plain(self.also)}"

    def __str__(self) -> str:
        low = "..." if self.low is None else _plain(self.low)
        high = "..." if self.high is None else _plain(self.high)
        return f"[{low},{high}]{self._or_also}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the given words; for a list, each of its entries."""

    words: tuple[str, ...]
    hint: str = ""
    """What to do instead, in a clause."""

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        entries = value if isinstance(value, tuple) else (value,)
        if all(entry in self.words for entry in entries):
            return None
        clause = f"it must be one of {', '.join(self.words)}"
        return f"{clause}; {self.hint}" if self.hint else clause

    def __str__(self) -> str:
        return f"[{', '.join(self.words)}]"


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A text or a list that is not empty."""

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        return None if value else "it must not be empty"

    def __str__(self) -> str:
        return "not empty"


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """``*`` or a list of ``partition:broker``, as the throttles of reassignments write it."""

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        if not isinstance(value, tuple) or value == ("*",):
            return None
        if all(_is_pair(entry) for entry in value):
            return None
        return "it must be '*' or a list of partition:broker"

    def __str__(self) -> str:
        return "* or partition:broker,..."


@dataclass(frozen=True, slots=True)
class CordonedDirs:
    """``*`` or a list of log directories (KIP-1066)."""

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        if not isinstance(value, tuple) or value == ("*",):
            return None
        if "*" in value:
            return "'*' stands alone"
        return None if all(value) else "an entry is empty"

    def __str__(self) -> str:
        return "* or entries of log.dirs"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An address of a metadata store that this version can open."""

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        if value is None or value == "memory:":
            return None
        for kind in ("sqlite:", "zookeeper://"):
            if isinstance(value, str) and value.startswith(kind) and len(value) > len(kind):
                return None
        return "it must be sqlite:PATH or zookeeper://HOST:PORT,.../CHROOT"

    def __str__(self) -> str:
        return "sqlite:PATH or zookeeper://HOST:PORT,.../CHROOT"


@dataclass(frozen=True, slots=True)
class Off:
    """A switch of a feature that this version does not have: it stays off."""

    def why_not(self, value: Value) -> str | None:
        """Return one clause that says why ``value`` is refused, or None."""
        return "this version does not have it: it must be false" if value else None

    def __str__(self) -> str:
        return "false"


Check = Between | OneOf | NotEmpty | ThrottledReplicas | CordonedDirs | StoreAddress | Off


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker's configuration that gives a topic's its default; ``factor`` converts the unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One configuration: all that DescribeConfigs and the checks need.

    ``default`` is text as Kafka shows it; None when there is none. ``synonyms`` of a topic's are
    the broker's configurations that are used, in this order, before the default. ``field`` has the
    typed value, of the type ``kept_as``, in ``TopicConfigs`` or ``ServerConfigs``.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    check: Check | None = None
    update: Update = Update.READ_ONLY
    without_effect: bool = False
    synonyms: tuple[Synonym, ...] = ()
    kept_as: Callable[[Any], Any] | None = None
    field: str = ""

    def typed(self, value: Value) -> Any:
        """Return a parsed value as its field has it: a list may be a set, a word an enum."""
        return value if value is None or self.kept_as is None else self.kept_as(value)

    @property
    def described(self) -> str:
        """The documentation as DescribeConfigs shows it; it says so if the configuration has no
        effect."""
        if self.without_effect:
            return f"{self.documentation} (Without effect in this version.)"
        return self.documentation


@dataclass(frozen=True, slots=True)
class InvalidConfig:
    """A refused configuration: its name, and an error message that names it too."""

    name: str
    sentence: str


TOO_LONG = f"it must have at most {MAX_TEXT_BYTES} bytes"


def is_too_long(text: str) -> bool:
    """Return whether a value has more bytes than a string of the protocol may have."""
    longest = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return longest > MAX_TEXT_BYTES


def parse(definition: ConfigDefinition, text: str | None) -> Value | InvalidConfig:
    """Turn the text of a value into a typed value, or refuse it in one sentence.

    White space around the text is dropped, as Kafka does. None is the value only of a
    configuration that has no default.
    """
    if text is None:
        if definition.default is None:
            return None
        return _refuse(definition, text, "it must have a value")
    if is_too_long(text):
        return _refuse(definition, text, TOO_LONG)
    value = _typed(definition.type, text.strip())
    if isinstance(value, _NotOfType):
        return _refuse(definition, text, value.clause)
    if definition.check is not None:
        clause = definition.check.why_not(value)
        if clause is not None:
            return _refuse(definition, text, clause)
    return value


LONGEST_SHOWN = 200
"""The most characters of a name or a value in an error message."""


def unknown(name: str, known: Iterable[str], what: str) -> InvalidConfig:
    """Refuse a name that no table has; the sentence offers the nearest known one."""
    near = nearest(name, known)
    hint = f" (did you mean {near}?)" if near is not None else ""
    return InvalidConfig(name, f"Unknown {what} configuration {shown(name)}{hint}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which an unknown one may be a misspelling; None if there is none.

    Names that only end alike are none: ``x.topic.replication.factor`` is of another program.
    """
    if len(name) > LONGEST_SHOWN:
        return None
    for near in get_close_matches(name, known, n=1, cutoff=0.75):
        first, of_near = name.partition(".")[0], near.partition(".")[0]
        if SequenceMatcher(None, name, near).ratio() >= 0.9 or get_close_matches(first, [of_near]):
            return near
    return None


def shown(name: str) -> str:
    """Return a name as a sentence has it: a very long one is cut."""
    return name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "..."


@dataclass(frozen=True, slots=True)
class _NotOfType:
    clause: str


_INTEGERS = {
    ConfigType.SHORT: (-(2**15), MAX_INT16),
    ConfigType.INT: (-(2**31), MAX_INT32),
    ConfigType.LONG: (-(2**63), MAX_INT64),
}


def _typed(kind: ConfigType, text: str) -> Value | _NotOfType:
    if kind in _INTEGERS:
        return _integer(kind, text)
    if kind is ConfigType.BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            return _NotOfType("it must be true or false")
        return lowered == "true"
    if kind is ConfigType.DOUBLE:
        return _double(text)
    if kind is ConfigType.LIST:
        return tuple(entry.strip() for entry in text.split(",")) if text else ()
    return text


def _integer(kind: ConfigType, text: str) -> int | _NotOfType:
    low, high = _INTEGERS[kind]
    digits = text[1:] if text[:1] in ("-", "+") else text
    # 20 digits hold every int64; longer text would make int() slow for nothing.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        return _NotOfType("it must be a whole number")
    value = int(text)
    if not low <= value <= high:
        return _NotOfType(f"it must be from {low} to {high}")
    return value


def _double(text: str) -> float | _NotOfType:
    try:
        value = float(text)
    except ValueError:
        return _NotOfType("it must be a number")
    if math.isnan(value):
        return _NotOfType("it must be a number")
    return value


def _refuse(definition: ConfigDefinition, text: str | None, clause: str) -> InvalidConfig:
    shown = (
        "null"
        if text is None
        else text
        if len(text) <= LONGEST_SHOWN
        else text[:LONGEST_SHOWN] + "..."
    )
    if definition.type is ConfigType.PASSWORD:
        shown = "[hidden]"
    sentence = f"Invalid value {shown} for configuration {definition.name}: {clause}."
    return InvalidConfig(definition.name, sentence)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _is_pair(entry: str) -> bool:
    partition, colon, broker = entry.partition(":")
    return bool(colon) and partition.isdigit() and broker.isdigit()
