"""Deletions of groups and of offsets whose coordinator could not do them at first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.client.admin.groups import REPEATED, delete_group, delete_offsets
from tidelog.client.errors import ConnectionLost, Refused
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def coordinated(kind: type[Any], *answers: Any) -> ScriptedCluster:
    """Return a cluster whose coordinator gives these answers in turn."""
    left = iter(answers)
    return ScriptedCluster(view_of(topic("t", [1, 1])), {kind: lambda *_: next(left)})


def of_group(code: E) -> messages.DeleteGroupsResponse:
    response = messages.DeleteGroupsResponse
    return response(results=[response.DeletableGroupResult(group_id="g", error_code=code)])


def of_offsets(first: E, second: E, whole: E = E.NONE) -> messages.OffsetDeleteResponse:
    response = messages.OffsetDeleteResponse
    part = response.OffsetDeleteResponsePartition
    parts = [part(partition_index=0, error_code=first), part(partition_index=1, error_code=second)]
    topics = [response.OffsetDeleteResponseTopic(name="t", partitions=parts)]
    return response(error_code=whole, topics=topics)


@pytest.mark.parametrize("first", [of_group(E.COORDINATOR_NOT_AVAILABLE), ConnectionLost("gone")])
def test_a_group_that_an_earlier_attempt_may_have_deleted_is_said_to_be(first: Any) -> None:
    """The write of the first one was late; its caller got GROUP_ID_NOT_FOUND alone."""

    async def of() -> None:
        found = of_group(E.GROUP_ID_NOT_FOUND)
        cluster = coordinated(messages.DeleteGroupsRequest, first, found)
        with pytest.raises(Refused, match=REPEATED) as refused:
            await delete_group(cluster, "g")
        assert refused.value.code is E.GROUP_ID_NOT_FOUND

    story(of)


def test_a_group_that_is_not_there_at_once_is_only_that() -> None:
    async def of() -> None:
        cluster = coordinated(messages.DeleteGroupsRequest, of_group(E.GROUP_ID_NOT_FOUND))
        with pytest.raises(Refused) as refused:
            await delete_group(cluster, "g")
        assert REPEATED not in str(refused.value)

    story(of)


def test_offsets_that_could_not_be_deleted_in_time_are_asked_for_again() -> None:
    """A caller was given COORDINATOR_NOT_AVAILABLE, which a group's deletion is tried again for."""

    async def of() -> None:
        late = of_offsets(E.COORDINATOR_NOT_AVAILABLE, E.GROUP_SUBSCRIBED_TO_TOPIC)
        done = of_offsets(E.NONE, E.GROUP_SUBSCRIBED_TO_TOPIC)
        cluster = coordinated(messages.OffsetDeleteRequest, late, done)
        outcomes = await delete_offsets(cluster, "g", [T0, T1])
        assert outcomes[T0] is None
        refused = outcomes[T1]
        assert refused is not None and refused.code is E.GROUP_SUBSCRIBED_TO_TOPIC
        assert len(cluster.asked_for(messages.OffsetDeleteRequest)) == 2

    story(of)
