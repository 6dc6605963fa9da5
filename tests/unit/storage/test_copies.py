"""Which of several directories of one partition is its replica: the table of ``storage.copies``."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.storage.checkpoints import (
    Created,
    DamagedFile,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from tidelog.storage.directory.copies import MOVED, REPLACED, UNFINISHED, FoundReplica, judge

A, B, NO_ID = UUID(int=0xA), UUID(int=0xB), UUID(int=0)
FIRST, SECOND, THIRD = (10, 1), (20, 1), (20, 2)


def made(
    place: str, topic: UUID, created: Created | None = None, *replaces: Created
) -> FoundReplica[str]:
    return FoundReplica(
        place, PartitionMetadata(topic, 0, (), created, replaces), is_unfinished=False
    )


def moved(place: str, created: Created, copy_of: Created) -> FoundReplica[str]:
    metadata = PartitionMetadata(A, 0, (), created, copy_of=copy_of)
    return FoundReplica(place, metadata, is_unfinished=False)


def begun(place: str) -> FoundReplica[str]:
    return FoundReplica(place, None, is_unfinished=True)


def nameless(place: str) -> FoundReplica[str]:
    return FoundReplica(place, None, is_unfinished=False)


@pytest.mark.parametrize(
    ("copies", "kept", "left"),
    [
        ([begun("a"), made("b", A)], ["b"], {"a": UNFINISHED}),
        ([begun("a"), begun("b")], ["a"], {"b": UNFINISHED}),
        ([begun("a"), nameless("b")], ["b"], {"a": UNFINISHED}),
        # A move to another log directory was interrupted after the rename, once or twice.
        ([made("a", A, FIRST), moved("b", SECOND, FIRST)], ["b"], {"a": MOVED}),
        ([moved("a", SECOND, FIRST), moved("b", THIRD, SECOND)], ["b"], {"a": MOVED}),
        ([nameless("a"), moved("b", SECOND, FIRST)], [], {}),
        ([made("a", A, THIRD), moved("b", SECOND, FIRST)], [], {}),
        # A deletion had failed; the same topic, or the next of the name, was made elsewhere.
        ([made("a", A, FIRST), made("b", A, SECOND, FIRST)], ["b"], {"a": REPLACED}),
        ([made("a", A, SECOND, FIRST), made("b", B, FIRST)], ["a"], {"b": REPLACED}),
        (
            [made("a", A, FIRST), made("b", A, SECOND, FIRST), made("c", A, THIRD, SECOND)],
            ["c"],
            {"a": REPLACED, "b": REPLACED},
        ),
        (
            [made("a", A, FIRST), made("b", A, SECOND), made("c", A, THIRD, FIRST, SECOND)],
            ["c"],
            {"a": REPLACED, "b": REPLACED},
        ),
        # What is replaced may say what it replaced itself: that is gone.
        ([made("a", A, SECOND, FIRST), made("b", A, THIRD, SECOND)], ["b"], {"a": REPLACED}),
        # Two topics: the controller knows which one lives.
        ([made("a", A), made("b", B)], ["a", "b"], {}),
        ([made("a", A, FIRST), made("b", B, SECOND), begun("c")], ["a", "b"], {"c": UNFINISHED}),
        # No proof.
        ([made("a", A, FIRST), made("b", A, SECOND)], [], {}),
        ([made("a", A), made("b", A)], [], {}),
        ([made("a", A), made("b", B), made("c", A)], [], {}),
        ([made("a", A), nameless("b")], [], {}),
        ([made("a", NO_ID), made("b", A)], [], {}),
        ([nameless("a"), nameless("b")], [], {}),
        # What was made by a version that says nothing is not what a line names.
        ([made("a", A), made("b", A, SECOND, FIRST)], [], {}),
        # Each names the other: a hand was there.
        ([made("a", A, FIRST, SECOND), made("b", A, SECOND, FIRST)], [], {}),
    ],
)
def test_which_one_is_the_replica(
    copies: list[FoundReplica[str]], kept: list[str], left: dict[str, str]
) -> None:
    for order in (copies, copies[::-1]):
        found = judge(order)
        if all(each.is_unfinished for each in copies):
            # They are the same: whichever stays.
            assert (len(found.kept), len(found.left)) == (1, len(copies) - 1)
            continue
        assert sorted(found.kept) == kept
        assert dict(found.left) == left


def test_metadata_says_which_directory_it_is_and_what_it_replaces() -> None:
    said = PartitionMetadata(A, 3, (("a", "b: c"),), SECOND, (FIRST, THIRD), FIRST)
    content = encode_partition_metadata(said)
    assert b"\ncreated: 20.1\nreplaces: 10.1 20.2\ncopy_of: 10.1\ncrc32c: " in content
    assert decode_partition_metadata(content) == said
    plain = PartitionMetadata(A, 3)
    assert decode_partition_metadata(encode_partition_metadata(plain)) == plain
    assert b"created" not in encode_partition_metadata(plain), "as an earlier version wrote it"
    with pytest.raises(DamagedFile):
        decode_partition_metadata(content.replace(b"20.1", b"20.3"))
