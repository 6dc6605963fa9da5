"""The rows and lines of ``tidelog doctor unclean``."""

from __future__ import annotations

from typing import Any

from tidelog.cli.doctor_unclean import COLUMNS, lost_nothing, missing, rows_of


def election(**changes: Any) -> dict[str, Any]:
    return {
        "topic": "t",
        "topic_id": "x",
        "partition": 3,
        "leader": 2,
        "leader_epoch": 7,
        "log_end_offset": 60,
        "log_end_epoch": 5,
        "handled": True,
        "flagged": False,
        "lost_offsets": 40,
        "lost": [
            {"from_offset": 60, "to_offset": 100, "epochs": [5, 6], "replicas": [1, 3]},
            {"from_offset": 60, "to_offset": 80, "epochs": [5], "replicas": [4]},
        ],
        "missing_replicas": [],
        **changes,
    }


def test_each_range_has_a_row_and_only_the_first_one_names_the_election() -> None:
    first, second = rows_of(election())
    assert first == ["t-3", 2, 7, "60 (epoch 5)", "finished", 40, "60-99", "5,6", "1,3"]
    assert second == ["", "", "", "", "", "", "60-79", "5", "4"]
    assert len(first) == len(second) == len(COLUMNS)


def test_what_is_not_known_is_left_open() -> None:
    nothing: dict[str, Any] = {"lost": [], "lost_offsets": 0, "handled": False}
    (row,) = rows_of(election(log_end_offset=None, log_end_epoch=None, leader=None, **nothing))
    assert row == ["t-3", None, 7, None, "open", 0, None, None, None]
    (row,) = rows_of(election(log_end_offset=0, log_end_epoch=-1, **nothing))
    assert row[3] == "0"


def test_a_missing_replica_is_named_once() -> None:
    elections = [
        election(missing_replicas=[1]),
        election(missing_replicas=[1], leader_epoch=9),
        election(topic="u", missing_replicas=[1]),
        election(missing_replicas=[1, 3], partition=4),
        election(),
    ]
    assert missing(elections) == [
        "not reported yet: records of t-3, u-3 that only broker 1 held",
        "not reported yet: records of t-4 that only broker 1, 3 held",
    ]


def test_only_what_is_settled_and_lost_nothing_has_no_row() -> None:
    nothing: dict[str, Any] = {"lost": [], "lost_offsets": 0}
    assert lost_nothing(election(**nothing))
    assert not lost_nothing(election())
    assert not lost_nothing(election(**nothing, handled=False))
    assert not lost_nothing(election(**nothing, missing_replicas=[1]))
