"""Moves between log directories: what a request, an event and a start do."""

from __future__ import annotations

import uuid

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.replication.future_replicas import (
    NEXT,
    Found,
    Local,
    MoveAction,
    MoveEvent,
    Next,
    decide,
    found_at_start,
)

ID, OTHER = uuid.UUID(int=7), uuid.UUID(int=8)
HERE = Local("/a", topic_id=ID)
COPIED = Local("/a", "/b", topic_id=ID)
OFFLINE = Local("/a", is_offline=True, topic_id=ID)
NAMELESS = Local("/a")

OK = ErrorCode.NONE
NO_DIRECTORY = ErrorCode.LOG_DIR_NOT_FOUND
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION
ABSENT = ErrorCode.REPLICA_NOT_AVAILABLE
CORDONED = ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("directory", "is_failed", "is_invalid", "local", "error", "action"),
    [
        (None, False, False, HERE, NO_DIRECTORY, MoveAction.NOTHING),
        (None, False, True, None, NO_DIRECTORY, MoveAction.NOTHING),
        ("/b", False, True, None, INVALID, MoveAction.NOTHING),
        ("/b", True, True, HERE, INVALID, MoveAction.NOTHING),
        ("/b", True, False, None, STORAGE, MoveAction.NOTHING),
        ("/b", True, False, HERE, STORAGE, MoveAction.NOTHING),
        ("/b", False, False, OFFLINE, STORAGE, MoveAction.NOTHING),
        ("/a", False, False, OFFLINE, STORAGE, MoveAction.NOTHING),
        ("/b", False, False, None, ABSENT, MoveAction.REMEMBER),
        ("/b", False, False, NAMELESS, ABSENT, MoveAction.NOTHING),
        ("/a", False, False, HERE, OK, MoveAction.NOTHING),
        ("/a", False, False, COPIED, OK, MoveAction.END),
        ("/b", False, False, COPIED, OK, MoveAction.NOTHING),
        ("/c", False, False, COPIED, OK, MoveAction.BEGIN),
        ("/b", False, False, HERE, OK, MoveAction.BEGIN),
    ],
)
def test_a_request(
    directory: str | None,
    is_failed: bool,
    is_invalid: bool,
    local: Local | None,
    error: ErrorCode,
    action: MoveAction,
) -> None:
    assert decide(directory, is_failed, is_invalid, local) == (error, action)


@pytest.mark.parametrize(
    ("directory", "local", "error", "action"),
    [
        ("/b", None, CORDONED, MoveAction.NOTHING),
        ("/b", HERE, CORDONED, MoveAction.NOTHING),
        ("/c", COPIED, CORDONED, MoveAction.NOTHING),
        # What is there stays, and so does a copy that began before.
        ("/a", COPIED, OK, MoveAction.END),
        ("/b", COPIED, OK, MoveAction.NOTHING),
        (None, HERE, NO_DIRECTORY, MoveAction.NOTHING),
    ],
)
def test_a_request_for_a_cordoned_directory(
    directory: str | None, local: Local | None, error: ErrorCode, action: MoveAction
) -> None:
    assert decide(directory, False, False, local, is_cordoned=True) == (error, action)


def test_each_event_has_an_outcome_and_few_remove_the_copy() -> None:
    assert set(NEXT) == set(MoveEvent)
    assert [event for event, then in NEXT.items() if then is Next.END_AND_REMOVE] == [
        MoveEvent.NOT_MADE,
        MoveEvent.UNWANTED,
    ]
    assert [event for event, then in NEXT.items() if then is Next.REST] == [MoveEvent.FULL]
    assert [event for event, then in NEXT.items() if then is Next.TAKE_PLACE] == [MoveEvent.NEAR]


@pytest.mark.parametrize(
    ("topic_id", "local", "all_usable", "found"),
    [
        (ID, None, True, Found.REMOVE),
        (ID, None, False, Found.KEEP),
        (ID, HERE, True, Found.GO_ON),
        (ID, HERE, False, Found.GO_ON),
        (OTHER, HERE, True, Found.REMOVE),
        (None, HERE, True, Found.GO_ON),
        (None, HERE, False, Found.GO_ON),
        (None, None, True, Found.REMOVE),
        (None, Local("/b", topic_id=ID), True, Found.REMOVE),
        (None, NAMELESS, True, Found.REMOVE),
        (ID, Local("/b", topic_id=ID), True, Found.REMOVE),
        (ID, NAMELESS, True, Found.REMOVE),
    ],
)
def test_a_copy_that_a_start_finds(
    topic_id: uuid.UUID | None, local: Local | None, all_usable: bool, found: Found
) -> None:
    assert found_at_start("/b", topic_id, local, all_usable) is found
