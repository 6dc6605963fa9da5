"""Constructors of the rows of configurations: each is the value of a typed field of a dataclass.

A row is said once, as ``num_partitions: int = row(INT, 1, "The number of ...", AT_LEAST_1)``: the
field's name with dots is the configuration's name, its annotation the type that readers get, its
value the default. ``rows_of`` returns the definitions of such a class. Owns no row: see `topic`,
`broker`, `broker_log` and `broker_replication`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.model.configs.types import (
    MAX_INT64,
    Between,
    Check,
    ConfigDefinition,
    ConfigType,
    Synonym,
    Update,
    Value,
)

BOOLEAN, STRING, LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST
SHORT, INT, LONG, DOUBLE = ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE

AT_LEAST_0 = Between(low=0)
AT_LEAST_1 = Between(low=1)

_T = TypeVar("_T")
_ROW = "row"


def row(
    kind: ConfigType,
    default: _T,
    documentation: str,
    check: Check | None = None,
    *,
    update: Update = Update.READ_ONLY,
    without_effect: bool = False,
    synonyms: tuple[Synonym, ...] = (),
) -> _T:
    """A row with all its columns; mypy takes it for its default."""

    def define(name: str) -> ConfigDefinition:
        return ConfigDefinition(
            name,
            kind,
            _text(default),
            documentation,
            check,
            update,
            without_effect,
            synonyms,
            kept_as=None if default is None else type(default),
        )

    made_of_it: _T = field_of(define, default)
    return made_of_it


def made(
    kind: ConfigType, default: Value, documentation: str, check: Check | None = None, name: str = ""
) -> Any:
    """A configuration whose typed value is made from several, in `server`: there is no default."""

    def define(own_name: str) -> ConfigDefinition:
        return ConfigDefinition(name or own_name, kind, _text(default), documentation, check)

    return field_of(define)


def idle(kind: ConfigType, default: _T, documentation: str, check: Check | None = None) -> _T:
    """A configuration that Kafka's files may have, without effect in this version."""
    return row(kind, default, documentation, check, without_effect=True)


def idle_machinery(kind: ConfigType, default: _T, doc: str, check: Check | None = None) -> _T:
    """As ``idle``; Kafka's tools change it while a broker runs, so they may here too."""
    return row(kind, default, doc, check, update=Update.CLUSTER_WIDE, without_effect=True)


def rate(documentation: str, check: Between = AT_LEAST_0) -> int:
    """A throttle: Kafka's reassignment tool removes it from every broker, so it is dynamic."""
    return row(LONG, MAX_INT64, documentation, check, update=Update.PER_BROKER)


def field_of(define: Callable[[str], ConfigDefinition], default: Any = dataclasses.MISSING) -> Any:
    """Return the dataclass field of a row; ``define`` takes the configuration's name."""
    return dataclasses.field(default=default, metadata={_ROW: define})


def rows_of(table: type) -> tuple[ConfigDefinition, ...]:
    """Return the definitions of a dataclass of rows, in its order."""
    fields = [entry for entry in dataclasses.fields(table) if _ROW in entry.metadata]
    return tuple(
        dataclasses.replace(entry.metadata[_ROW](entry.name.replace("_", ".")), field=entry.name)
        for entry in fields
    )


def _text(default: object) -> str | None:
    """Return a default as Kafka shows it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return str(default).replace("e+", "E")
    if isinstance(default, tuple | frozenset):
        return ",".join(default)
    return None if default is None else str(default)
