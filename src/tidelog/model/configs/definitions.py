"""Every configuration by name: what it is, what it may be, and which value holds.

The one module to import from: it gathers the table of topics, the table of brokers, the checks
and the order of precedence. Typed values live in ``topic_configs`` and ``server_configs``.
"""

from __future__ import annotations

from tidelog.model.configs.broker import BROKER, SECTIONS
from tidelog.model.configs.resolve import (
    MIN_INSYNC,
    BrokerLayers,
    ConfigEntry,
    ConfigSynonym,
    ResolvedTopic,
    TopicResolver,
    check_dynamic_broker_configs,
    check_topic_configs,
    describe_broker,
    describe_brokers_default,
    resolve_topic,
)
from tidelog.model.configs.topic import TOPIC
from tidelog.model.configs.types import (
    ConfigDefinition,
    ConfigSource,
    ConfigType,
    Importance,
    Refused,
    Update,
    Value,
    parse,
    unknown,
)

__all__ = [
    "BROKER",
    "MIN_INSYNC",
    "SECTIONS",
    "TOPIC",
    "BrokerLayers",
    "ConfigDefinition",
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Importance",
    "Refused",
    "ResolvedTopic",
    "TopicResolver",
    "Update",
    "Value",
    "check_dynamic_broker_configs",
    "check_topic_configs",
    "describe_broker",
    "describe_brokers_default",
    "parse",
    "resolve_topic",
    "unknown",
]
