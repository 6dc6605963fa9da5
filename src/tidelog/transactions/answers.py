"""Errors of transactions as the version of a request has them.

Owns the difference between versions. Not the errors themselves: see `rules`.
Source: KIP-360. A client ends its producer at PRODUCER_FENCED; versions before know
only INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode

PRODUCER_FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The first versions whose clients know PRODUCER_FENCED."""


def error_in(api_key: ApiKey, version: int, error: ErrorCode) -> ErrorCode:
    """Return the error for a client that sent this version.

    APIs without a row know PRODUCER_FENCED in no version (TxnOffsetCommit, WriteTxnMarkers).
    """
    if error is not ErrorCode.PRODUCER_FENCED:
        return error
    since = PRODUCER_FENCED_SINCE.get(api_key)
    known = since is not None and version >= since
    return error if known else ErrorCode.INVALID_PRODUCER_EPOCH
