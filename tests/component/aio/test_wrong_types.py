"""A wrong type given to any method of a public client: one clear line, and no request is sent.

All methods, all their arguments, and a list of values: what is refused is refused by the checks of
``tidelog.aio``, and what is accepted can be written.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidelog
import tidelog.aio
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.aio import Admin, ConfigResource, ConfigResourceType, Consumer, NewTopic, Producer
from tidelog.client.connecting.connection import api_of_request
from tidelog.client.errors import ClientError, ConfigurationRefused
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec

T0 = TopicPartition("t", 0)

# As callers without a type checker use them.
new_topic: Any = NewTopic
resource: Any = ConfigResource

WRONG: list[Any] = [
    None, 3, -5, 2**70, 1.5, True, object(), "x", "\udc80", b"x", len,
    [None], [1], ["x"], ["\udc80"], [T0], [("t", 0, 1)], [("t", "0")],
    {1: 2}, {3: {}}, {"t": "x"}, {"t": None}, {"t": {0: 1}}, {"t": ["x"]}, {"x": [1]},
    T0, {T0: object()}, {T0: None}, {T0: "x"}, {T0: ["x"]}, {T0: 2**70}, {("t", 0): -5},
    [new_topic("t", "4")], [new_topic(3)], [new_topic("t", replica_assignments={0: "x"})],
    [new_topic("t", topic_configs=["x"])], [resource(ConfigResourceType.TOPIC, 3)],
]  # fmt: skip

GOOD: dict[str, Any] = {
    "topics": ["t"],
    "new_topics": ["t"],
    "topic_partitions": {"t": 4},
    "topic": "t",
    "count": 4,
    "records_to_delete": {T0: 1},
    "topic_partition_specs": {T0: 1},
    "reassignments": {T0: [1]},
    "election_type": 0,
    "config_resources": [ConfigResource(ConfigResourceType.TOPIC, "t", {"a": "b"})],
    "group_ids": ["g"],
    "group_id": "g",
    "offsets": {T0: 1},
    "partitions": [T0],
    "partition": T0,
    "offset": 1,
    "timestamps": {T0: 1},
    "group_metadata": "g",
    "prepared": ("id", 1, 0),
}
LIFECYCLE = {"start", "stop", "close"}


class Reached(ClientError):
    """A request was written."""


class Writing(ScriptedCluster):
    """Writes each request as a connection does, and answers none."""

    def __init__(self) -> None:
        super().__init__(view_of(topic("t", [0, 1, 2])), default_api_timeout_ms=1)

    async def answered(self, node_id: int, request: Any) -> Any:
        api = api_of_request(request)
        codec.encode_request(api.key, api.versions.last or 0, 0, None, request)
        raise Reached("a request was written")

    async def send(self, node_id: int, request: Any, **_: Any) -> Any:
        return await self.answered(node_id, request)

    async def send_to_controller(self, request: Any, **_: Any) -> Any:
        return await self.answered(0, request)

    async def describe(self, names: Any, **_: Any) -> Any:
        raise Reached("a request was written")

    async def controller_connection(self) -> Any:
        return await self.connection(0)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin client makes its view of the cluster itself."""
    monkeypatch.setattr("tidelog.aio.admin.Cluster", lambda *_: Writing())


async def an_admin() -> Any:
    return Admin(bootstrap_servers="h:1")


async def a_producer() -> Any:
    made = Producer(cluster=Writing())
    await made.start()
    return made


async def a_consumer() -> Any:
    return Consumer(group_id="g", cluster=Writing())


CLIENTS: dict[type[Any], tuple[Callable[[], Any], type[Any]]] = {
    Admin: (an_admin, tidelog.Admin),
    Producer: (a_producer, tidelog.Producer),
    Consumer: (a_consumer, tidelog.Consumer),
}


def methods_of(kind: type[Any]) -> list[str]:
    """The methods that users call: the blocking client has them too."""
    shared = set(dir(kind)) & set(dir(CLIENTS[kind][1]))
    names = {name for name in shared if name[0] != "_" and callable(getattr(kind, name))}
    return sorted(names - LIFECYCLE)


def given_to(method: Any, name: str, value: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call in which one has this value and the others are sound."""
    rest, named = [], {}
    for each in list(inspect.signature(method).parameters.values())[1:]:
        if each.name == name:
            if each.kind is each.VAR_POSITIONAL:
                rest.append(value)
            else:
                named[name] = value
        elif each.default is each.empty and each.kind is not each.VAR_POSITIONAL:
            named[each.name] = GOOD[each.name]
    return rest, named


def is_said_by_us(error: Exception) -> bool:
    """Whether it is one line that a check of ours raises."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(last.filename).is_relative_to(Path(tidelog.aio.__file__).parent)
    return ours and "raise" in (last.line or "") and "\n" not in str(error)


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda each: each.__name__)
def test_no_wrong_type_reaches_the_inside_of_a_client(kind: type[Any]) -> None:
    """``delete_records`` with a str for a key: 'str' object has no attribute 'topic'."""
    raw: dict[str, str] = {}

    async def one(name: str, argument: str, value: Any) -> None:
        client = await CLIENTS[kind][0]()
        rest, named = given_to(getattr(kind, name), argument, value)
        try:
            found = getattr(client, name)(*rest, **named)
            if inspect.isawaitable(found):
                # One that is accepted may wait for the broker.
                async with asyncio.timeout(0.02):
                    await found
        except (ClientError, TimeoutError):
            return
        except Exception as error:
            if not (isinstance(error, TypeError) and is_said_by_us(error)):
                raw[f"{name}({argument}={value!r})"] = f"{type(error).__name__}: {error}"

    async def main() -> None:
        for name in methods_of(kind):
            for argument in list(inspect.signature(getattr(kind, name)).parameters)[1:]:
                for value in WRONG:
                    await one(name, argument, value)

    asyncio.run(main())
    assert raw == {}


def test_the_line_names_what_is_expected() -> None:
    async def main() -> None:
        client = await an_admin()
        with pytest.raises(TypeError, match=r"a partition is a TopicPartition\(topic, partition\)"):
            await client.delete_records({"t": 5})
        with pytest.raises(TypeError, match="records_to_delete must be a dict by TopicPartition"):
            await client.delete_records([T0])
        with pytest.raises(ConfigurationRefused, match="an offset must be from -1 to"):
            await client.delete_records({T0: -2})
        with pytest.raises(TypeError, match="brokers must be a list of ids, not str"):
            await client.alter_partition_reassignments({T0: "12"})
        with pytest.raises(ConfigurationRefused, match=r"one of PREFERRED \(0\), UNCLEAN \(1\)"):
            await client.elect_leaders(7)

    asyncio.run(main())
