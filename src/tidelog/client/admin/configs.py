"""Dynamic configurations of topics and brokers: describing and changing them.

Owns the client's DescribeConfigs and IncrementalAlterConfigs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.model.admin_requests import AlterOperation, ResourceType
from tidelog.model.configs.types import ConfigSource
from tidelog.protocol import messages

TOPICS_PER_REQUEST = 100

Source = ConfigSource
"""The source of a value (KIP-226)."""


DYNAMIC = frozenset(
    {
        Source.DYNAMIC_TOPIC_CONFIG,
        Source.DYNAMIC_BROKER_CONFIG,
        Source.DYNAMIC_DEFAULT_BROKER_CONFIG,
        Source.DYNAMIC_GROUP_CONFIG,
    }
)
"""Sources of dynamic values, as opposed to properties files and defaults."""


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One configuration of one resource; ``value`` is None when it is sensitive or unset."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    sensitive: bool
    synonyms: tuple[tuple[Source, str, str | None], ...] = ()
    documentation: str = ""


async def describe_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    *,
    keys: Sequence[str] | None = None,
    documentation: bool = False,
) -> list[DescribedConfig]:
    """Return the configurations of one resource with their synonyms, only those in ``keys`` if
    given. Raises Refused."""
    request = _describe_request(kind, [name], keys)
    request.include_documentation = documentation
    answer: messages.DescribeConfigsResponse = await _send(cluster, kind, name, request)
    described = _read_result(kind, answer.results[0])
    if isinstance(described, Refused):
        raise described
    return described


async def describe_topics_configs(
    cluster: Cluster, names: Sequence[str], keys: Sequence[str] | None = None
) -> dict[str, list[DescribedConfig] | Refused]:
    """Return the configurations of many topics, only those in ``keys`` if given.

    One request for each hundred topics.
    """
    described: dict[str, list[DescribedConfig] | Refused] = {}
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        some = names[start : start + TOPICS_PER_REQUEST]
        request = _describe_request(ResourceType.TOPIC, some, keys)
        answer: messages.DescribeConfigsResponse = await _send(
            cluster, ResourceType.TOPIC, "", request
        )
        for result in answer.results:
            described[result.resource_name] = _read_result(ResourceType.TOPIC, result)
    return described


def values_of(
    described: Mapping[str, list[DescribedConfig] | Refused], name: str
) -> dict[str, str]:
    """Return the value of one configuration of each topic that was described and has one."""
    return {
        topic: entry.value
        for topic, entries in described.items()
        if not isinstance(entries, Refused)
        for entry in entries
        if entry.name == name and entry.value is not None
    }


def _describe_request(
    kind: ResourceType, names: Sequence[str], keys: Sequence[str] | None
) -> messages.DescribeConfigsRequest:
    return messages.DescribeConfigsRequest(
        resources=[
            messages.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if keys is None else list(keys),
            )
            for name in names
        ],
        include_synonyms=True,
    )


def _read_result(
    kind: ResourceType, result: messages.DescribeConfigsResponse.DescribeConfigsResult
) -> list[DescribedConfig] | Refused:
    if result.error_code:
        subject = _subject(kind, result.resource_name)
        return Refused(result.error_code, subject, result.error_message)
    return [
        DescribedConfig(
            name=item.name,
            value=item.value,
            source=_source(item.config_source),
            read_only=item.read_only,
            sensitive=item.is_sensitive,
            synonyms=tuple((_source(s.source), s.name, s.value) for s in item.synonyms),
            documentation=item.documentation or "",
        )
        for item in result.configs
    ]


async def alter_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    *,
    set_values: Mapping[str, str] | None = None,
    delete: Iterable[str] = (),
    validate_only: bool = False,
    may_be_away: bool = False,
) -> None:
    """Set some configurations of one resource and delete others. Raises Refused.

    With ``may_be_away`` the request about a broker that cannot be reached goes to another one,
    which forwards it.
    """
    changes: list[tuple[str, AlterOperation, str | None]] = [
        (key, AlterOperation.SET, value) for key, value in (set_values or {}).items()
    ]
    changes += [(key, AlterOperation.DELETE, None) for key in delete]
    await change_configs(
        cluster, kind, name, changes, validate_only=validate_only, may_be_away=may_be_away
    )


async def change_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    changes: Iterable[tuple[str, AlterOperation, str | None]],
    *,
    validate_only: bool = False,
    may_be_away: bool = False,
) -> None:
    """Carry out operations on configurations of one resource, all or none. Raises Refused."""
    alter = messages.IncrementalAlterConfigsRequest
    rows = [
        alter.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    request = alter(
        resources=[
            alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
        ],
        validate_only=validate_only,
    )
    answer: messages.IncrementalAlterConfigsResponse
    if may_be_away:
        answer = await cluster.retry(lambda: _send_to_it_or_any(cluster, int(name), request))
    else:
        answer = await _send(cluster, kind, name, request, changes=True)
    result = answer.responses[0]
    if result.error_code:
        raise Refused(result.error_code, _subject(kind, name), result.error_message)


def _subject(kind: ResourceType, name: str) -> str:
    """Return what an error names; the defaults of all brokers have no name."""
    return f"{kind.name.lower()} {name!r}" if name else "all brokers"


async def _send(
    cluster: Cluster, kind: ResourceType, name: str, request: Any, *, changes: bool = False
) -> Any:
    """Send to any broker, but a request about one broker (or its loggers) to that broker."""
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
        if not name.isdigit() or int(name) not in cluster.view.brokers:
            node_ids = ", ".join(str(node_id) for node_id in sorted(cluster.view.brokers))
            raise ClientError(f"there is no broker {name!r}: the live brokers are {node_ids}")
        node_id = int(name)

        return await cluster.retry(lambda: cluster.send(node_id, request))
    return await cluster.retry(lambda: cluster.send_to_any(request, changes=changes))


async def _send_to_it_or_any(cluster: Cluster, node_id: int, request: Any) -> Any:
    with contextlib.suppress(ConnectionLost):
        return await cluster.send(node_id, request)
    return await cluster.send_to_any(request, changes=True)


def _source(number: int) -> Source:
    try:
        return Source(number)
    except ValueError:
        return Source.UNKNOWN
