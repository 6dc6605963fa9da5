"""Which error a fenced producer gets, by API and version."""

from __future__ import annotations

import pytest

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec
from tidelog.transactions.answers import error_in

FENCED, OLD = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("api_key", "errors"),
    [
        (ApiKey.INIT_PRODUCER_ID, [OLD, OLD, OLD, OLD, FENCED, FENCED]),
        (ApiKey.ADD_PARTITIONS_TO_TXN, [OLD, OLD, FENCED, FENCED, FENCED]),
        (ApiKey.ADD_OFFSETS_TO_TXN, [OLD, OLD, FENCED, FENCED, FENCED]),
        (ApiKey.END_TXN, [OLD, OLD, FENCED, FENCED, FENCED]),
        (ApiKey.TXN_OFFSET_COMMIT, [OLD] * 5),
    ],
)
def test_a_fenced_producer_gets_what_its_version_knows(
    api_key: ApiKey, errors: list[ErrorCode]
) -> None:
    versions = codec.api_of(api_key).all_versions()
    assert [error_in(api_key, version, FENCED) for version in versions] == errors


def test_other_errors_are_the_same_in_all_versions() -> None:
    for error in ErrorCode:
        if error is not FENCED:
            assert error_in(ApiKey.END_TXN, 0, error) is error
