"""DescribeConfigs v1-4: configurations, with the source of each value.

- Topics (from any broker) and brokers (each describes itself; "": the defaults for all brokers).
- Optional names; null and an empty list both mean all, as in Kafka.
- Synonyms on request, in order of precedence; v3+: types, and documentation on request.
- The documentation of a configuration without effect here says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.configurations import DEFAULT_BROKER, EntityType
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.resolve import ConfigEntry, describe_broker, describe_brokers_default
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import why_invalid
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

Answer = messages.DescribeConfigsResponse

RESULT_BYTES, ROW_BYTES = 200, 600
"""Memory of a resource and of a configuration, with synonyms, in a response under construction."""


def handle(
    broker: Broker, request: messages.DescribeConfigsRequest, context: RequestContext
) -> Work[Any]:
    """Describe every resource once, with its own error. O(resources x configurations).

    If a resource is named several times, its last entry counts.
    """
    results = []
    each_once = {(one.resource_type, one.resource_name): one for one in request.resources}
    for resource in each_once.values():
        entries = _entries(broker, resource.resource_type, resource.resource_name)
        result = Answer.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        if isinstance(entries, tuple):
            result.error_code, result.error_message = entries
        else:
            wanted = frozenset(resource.configuration_keys or ())
            result.configs = [
                _row(entry, request.include_synonyms, request.include_documentation)
                for entry in entries
                if not wanted or entry.name in wanted
            ]
        results.append(result)
        yield RESULT_BYTES + ROW_BYTES * len(result.configs)
    return Answer(results=results)


def _entries(broker: Broker, kind: int, name: str) -> list[ConfigEntry] | tuple[ErrorCode, str]:
    if kind == EntityType.TOPIC:
        why = why_invalid(name)
        if why is not None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name[:300]!r} is no topic name: {why}"
        if broker.metadata.topic(name) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
        return list(broker.topic_configs.describe_topic(name).entries)
    if kind == EntityType.BROKER:
        if name == DEFAULT_BROKER:
            default = broker.topic_configs.of(EntityType.BROKER, DEFAULT_BROKER)
            return list(describe_brokers_default(default))
        if name != str(broker.configs.node_id):
            message = f"this is broker {broker.configs.node_id}: ask broker {name[:100]!r} itself"
            return ErrorCode.INVALID_REQUEST, message
        return list(describe_broker(broker.topic_configs.layers()))
    return ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no configurations here"


def _row(entry: ConfigEntry, synonyms: bool, documentation: bool) -> Any:
    return Answer.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[_synonym(s) for s in entry.synonyms] if synonyms else [],
        config_type=entry.type,
        documentation=entry.documentation if documentation else None,
    )


def _synonym(synonym: Any) -> Any:
    row = Answer.DescribeConfigsSynonym
    return row(name=synonym.name, value=synonym.value, source=synonym.source)


HANDLER = Handler(ApiKey.DESCRIBE_CONFIGS, Scope.CLIENT, handle)
