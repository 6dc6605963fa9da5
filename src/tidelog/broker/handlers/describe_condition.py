"""DescribeCondition v0 (ours): the state of this broker, or forwarded to the controller.

- ``subjects`` ["broker"]: the state of this broker as JSON: ``role`` "broker", ``node_id``,
  ``version`` of the code, ``level`` in its file, ``highest_level``, ``controllers``: where it looks
  for the active controller (``host:port``), and ``set_aside``: the quarantined replicas, each with
  its ``path`` and ``removed_at_ms`` (null: never removed).
- ``subjects`` ["group", GROUP, TOPIC…]: the progress of a group that this broker coordinates, in
  these topics, as JSON (``groups.progress``), with the ``role`` "coordinator".
- ``subjects`` ["controllers"]: all controllers that this broker's file names, as JSON: each has
  its ``address``, ``controller_id``, ``active`` (null: it does not respond) and ``why`` it cannot
  be active.
- Other ``subjects`` go to the controller: see its handler. An older broker forwards these, too,
  and the response has the ``role`` "controller" (docs/decisions/0057).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.forwarding import forward
from tidelog.groups.group import GroupState
from tidelog.groups.progress import progress_of
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import HIGHEST
from tidelog.model.work import Work
from tidelog.network.forwarded import MOST_FORWARDED
from tidelog.network.router import FAILED, Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.storage import names
from tidelog.version import __version__

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.runtime.disk import Disk
    from tidelog.storage.directory.log_directory import LogDirectory

BROKER, GROUP, CONTROLLERS = "broker", "group", "controllers"

MOST_QUARANTINED = 1_000
"""Most quarantined replicas in a response; the directory itself shows the rest."""


def handle(
    broker: Broker, request: messages.DescribeConditionRequest, context: RequestContext
) -> Awaitable[Any] | Work[Any]:
    """Describe this broker, or forward the request."""
    if request.subjects == [BROKER]:
        return _own(broker)
    if request.subjects == [CONTROLLERS]:
        return _controllers(broker)
    if request.subjects[:1] == [GROUP] and len(request.subjects) > 1:
        return _progress(broker, request.subjects[1], request.subjects[2:])
    return forward(broker, ApiKey.DESCRIBE_CONDITION, request, context)


async def _own(broker: Broker) -> messages.DescribeConditionResponse:
    configs = broker.configs
    working = [directory for directory in broker.directories if directory.failed is None]
    # In a thread: a directory of very many replicas takes long to list.
    loop = asyncio.get_running_loop()
    paths = await loop.run_in_executor(broker.seams.threads, _strays, broker.seams.disk, working)
    condition = {
        "role": "broker",
        "node_id": configs.node_id,
        "version": __version__,
        "level": configs.inter_broker_protocol_version,
        "highest_level": HIGHEST.name,
        "controllers": broker.session.search.tried,
        "set_aside": [
            {"path": path, "removed_at_ms": directory.resources.removals.due_ms(path)}
            for directory, path in paths
        ],
    }
    return messages.DescribeConditionResponse(condition=json.dumps(condition))


async def _controllers(broker: Broker) -> messages.DescribeConditionResponse:
    condition = {"role": "broker", "controllers": await broker.session.quorum.conditions()}
    return messages.DescribeConditionResponse(condition=json.dumps(condition))


def _progress(
    broker: Broker, group_id: str, topics: Sequence[str]
) -> Work[messages.DescribeConditionResponse]:
    table = broker.coordinator.table_of(group_id)
    if isinstance(table, ErrorCode):
        return _refused(table, f"group {group_id!r} is not coordinated here now")
    group = table.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        return _refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    named = list(dict.fromkeys(topics))
    steps = progress_of(group, named, broker.metadata.id_of, broker.clock.monotonic_ms())
    condition = {"role": "coordinator", **(yield from steps)}
    return messages.DescribeConditionResponse(condition=json.dumps(condition))


def _strays(disk: Disk, directories: Sequence[LogDirectory]) -> list[tuple[LogDirectory, str]]:
    places: list[tuple[LogDirectory, str]] = []
    for directory in directories:
        try:
            listed = disk.list(directory.path)
        except OSError:
            # The directory's error is reported by other means.
            continue
        strays = (name for name in listed if name.endswith(names.STRAY_DIRECTORY))
        places += ((directory, f"{directory.path}/{name}") for name in strays)
    return places[:MOST_QUARANTINED]


def _refused(error: ErrorCode, message: str) -> messages.DescribeConditionResponse:
    return messages.DescribeConditionResponse(error_code=error, error_message=message, condition="")


HANDLER = Handler(
    ApiKey.DESCRIBE_CONDITION, Scope.CLIENT, handle, failure=FAILED, most_elements=MOST_FORWARDED
)
