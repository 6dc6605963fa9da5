"""OffsetCommit and OffsetFetch: what a request says, and what is made of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scripted_cluster import ScriptedCluster, view_of
from tidelog.client.errors import Refused
from tidelog.client.groups.committed_offsets import (
    CommitRefused,
    Membership,
    PartitionsRefused,
    Position,
    commit_offsets,
    committed_offsets,
    look_up_committed,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
POSITIONS = {A: Position(5, 2, "note"), B: Position(6), C: Position(7)}
MEMBERSHIP = Membership(4, "m-1", "static")


def named(request: Any) -> list[TopicPartition]:
    """Return the partitions of a request."""
    return [
        TopicPartition(topic.name, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    ]


def committed(
    request: Any, codes: dict[TopicPartition, ErrorCode]
) -> messages.OffsetCommitResponse:
    response = messages.OffsetCommitResponse
    topics = [
        response.OffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                response.OffsetCommitResponsePartition(
                    partition_index=part.partition_index,
                    error_code=codes.get(TopicPartition(topic.name, part.partition_index), 0),
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return response(topics=topics)


def commit(
    *answers: dict[TopicPartition, ErrorCode],
) -> tuple[list[messages.OffsetCommitRequest], Exception | None]:
    """Commit with these answers one after another; the requests, and what was raised."""
    left = list(answers)
    cluster = ScriptedCluster(
        view_of(),
        {messages.OffsetCommitRequest: lambda _, request: committed(request, left.pop(0))},
    )
    error = None
    try:
        asyncio.run(commit_offsets(cluster, "g", POSITIONS, MEMBERSHIP))
    except Refused as refused:
        error = refused
    assert not left
    return [request for _, request in cluster.asked], error


def test_a_commit_names_its_member_and_its_positions() -> None:
    (request,), error = commit({})
    assert error is None
    assert (request.group_id, request.member_id, request.group_instance_id) == (
        "g",
        "m-1",
        "static",
    )
    assert request.generation_id_or_member_epoch == 4
    assert named(request) == [A, B, C]
    first = request.topics[0].partitions[0]
    assert (first.committed_offset, first.committed_leader_epoch) == (5, 2)
    assert first.committed_metadata == "note"


def test_what_was_committed_is_not_sent_again_with_what_was_not() -> None:
    """By then a later commit of it may have been applied, and this one would take it back."""
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    requests, error = commit({B: loading}, {})
    assert error is None
    assert [named(each) for each in requests] == [[A, B, C], [B]]


def test_the_error_of_a_partition_is_its_own() -> None:
    no, large = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OFFSET_METADATA_TOO_LARGE
    requests, error = commit({A: large, B: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, C: no}, {})
    assert [named(each) for each in requests] == [[A, B, C], [B]]
    assert isinstance(error, CommitRefused)
    assert {where: each.code for where, each in error.errors.items()} == {A: large, C: no}
    assert error.code == large
    assert error.subject == "group 'g', t-0 (and 1 more partitions)"


def test_one_refused_partition_is_the_only_one() -> None:
    _, error = commit({A: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert isinstance(error, CommitRefused)
    assert error.subject == "group 'g', t-0" and error.errors.keys() == {A}


def test_an_error_of_the_group_ends_the_commit() -> None:
    code = ErrorCode.ILLEGAL_GENERATION
    requests, error = commit(dict.fromkeys(POSITIONS, code))
    assert len(requests) == 1
    assert type(error) is not CommitRefused and isinstance(error, Refused)
    assert error.code == code


Change = Callable[[Any], None]


def look_up(*changes: Change, **options: Any) -> tuple[list[Any], Any]:
    """Look positions up with these answers; the requests, and what was found or raised."""
    fetch = messages.OffsetFetchResponse
    left = list(changes)

    def answer(_: int, __: Any) -> Any:
        part = fetch.OffsetFetchResponsePartitions
        topics = [
            fetch.OffsetFetchResponseTopics(
                name="t",
                partitions=[
                    part(
                        partition_index=0,
                        committed_offset=5,
                        committed_leader_epoch=2,
                        metadata="n",
                    ),
                    part(partition_index=1, committed_offset=-1),
                    part(partition_index=2, committed_offset=0, metadata=None),
                ],
            )
        ]
        found = fetch(groups=[fetch.OffsetFetchResponseGroup(group_id="g", topics=topics)])
        left.pop(0)(found)
        return found

    cluster = ScriptedCluster(view_of(), {messages.OffsetFetchRequest: answer})
    try:
        found = asyncio.run(look_up_committed(cluster, "g", **options))
    except Refused as refused:
        found = refused  # type: ignore[assignment]
    assert not left
    return [request for _, request in cluster.asked], found


def as_it_is(_: Any) -> None:
    """Leave the answer."""


def code_of(index: int, code: ErrorCode) -> Change:
    def change(answer: Any) -> None:
        answer.groups[0].topics[0].partitions[index].error_code = int(code)

    return change


def test_partitions_without_a_commit_are_left_out_and_offset_0_is_one() -> None:
    (request,), found = look_up(as_it_is)
    assert found == ({A: Position(5, 2, "n"), TopicPartition("t", 2): Position(0)}, {})
    assert request.topics is None and request.groups[0].topics is None, "all of them"
    assert not request.require_stable


def test_a_lookup_names_its_partitions_in_both_forms() -> None:
    (request,), _ = look_up(as_it_is, partitions=iter([A, B]), require_stable=True)
    assert request.topics[0].partition_indexes == [0, 1]
    assert request.groups[0].topics[0].partition_indexes == [0, 1]
    assert (request.group_id, request.groups[0].group_id) == ("g", "g")
    assert request.require_stable


def test_a_final_error_of_a_partition_does_not_hide_the_others() -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    requests, (found, refused) = look_up(code_of(1, code))
    assert len(requests) == 1
    assert found.keys() == {A, TopicPartition("t", 2)}
    assert {where: each.code for where, each in refused.items()} == {B: code}


def test_an_unstable_partition_is_asked_for_again() -> None:
    requests, (found, refused) = look_up(code_of(1, ErrorCode.UNSTABLE_OFFSET_COMMIT), as_it_is)
    assert len(requests) == 2 and refused == {} and A in found


@pytest.mark.parametrize("is_in_group", [True, False])
def test_an_error_of_the_group_is_raised(is_in_group: bool) -> None:
    def change(answer: Any) -> None:
        place = answer.groups[0] if is_in_group else answer
        place.error_code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    _, found = look_up(change)
    assert isinstance(found, Refused) and found.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_tools_get_an_error_where_a_partition_has_one() -> None:
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    fetch = messages.OffsetFetchResponse
    part = fetch.OffsetFetchResponsePartition(partition_index=1, error_code=code)
    old = fetch(groups=[], topics=[fetch.OffsetFetchResponseTopic(name="t", partitions=[part])])
    cluster = ScriptedCluster(view_of(), {messages.OffsetFetchRequest: lambda *_: old})
    with pytest.raises(PartitionsRefused) as raised:
        asyncio.run(committed_offsets(cluster, "g"))
    assert raised.value.errors.keys() == {B}
