"""Constructors of the rows of a server's configurations, one function for each kind of row.

Owns no row: see `broker` and `broker_log`.
"""

from __future__ import annotations

from tidelog.model.configs.types import (
    MAX_INT64,
    Between,
    Check,
    ConfigDefinition,
    ConfigType,
    Importance,
    Update,
)

AT_LEAST_0 = Between(low=0)
AT_LEAST_1 = Between(low=1)
MAX = str(MAX_INT64)


def row(
    name: str,
    kind: ConfigType,
    default: str | None,
    documentation: str,
    check: Check | None = None,
    importance: Importance = Importance.MEDIUM,
    update: Update = Update.READ_ONLY,
    without_effect: bool = False,
) -> ConfigDefinition:
    """A row with all its columns."""
    return ConfigDefinition(
        name, kind, default, documentation, check, importance, update, without_effect
    )


def idle(
    name: str, kind: ConfigType, default: str | None, documentation: str, check: Check | None = None
) -> ConfigDefinition:
    """A configuration that Kafka's files may have, without effect in this version."""
    return row(name, kind, default, documentation, check, Importance.LOW, Update.READ_ONLY, True)


def idle_machinery(
    name: str, kind: ConfigType, default: str, documentation: str, check: Check | None = None
) -> ConfigDefinition:
    """As ``idle``; Kafka's tools change it while a broker runs, so they may here too."""
    update = Update.CLUSTER_WIDE
    return row(name, kind, default, documentation, check, Importance.LOW, update, True)


def topic_default(
    name: str, kind: ConfigType, default: str | None, documentation: str, check: Check | None = None
) -> ConfigDefinition:
    """The default of a topic's configuration: dynamic for the whole cluster."""
    return row(name, kind, default, documentation, check, update=Update.CLUSTER_WIDE)


def rate(name: str, doc: str, check: Between = AT_LEAST_0) -> ConfigDefinition:
    """A throttle: Kafka's reassignment tool removes it from every broker, so it is dynamic."""
    kind, importance = ConfigType.LONG, Importance.LOW
    return row(name, kind, MAX, doc, check, importance, Update.PER_BROKER)
