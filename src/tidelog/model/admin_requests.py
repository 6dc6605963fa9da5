"""The numbers of administrative requests: election types, resource types, operations on configs.

Owns what clients and the controller must agree on. Not the requests: see `client.admin` and
`controller.decisions`.
"""

from __future__ import annotations

from enum import IntEnum


class ElectionType(IntEnum):
    """The election that ElectLeaders requests. An unclean one may lose acknowledged records."""

    PREFERRED = 0
    UNCLEAN = 1


class ResourceType(IntEnum):
    """The resources that have configurations."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class AlterOperation(IntEnum):
    """An operation of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
