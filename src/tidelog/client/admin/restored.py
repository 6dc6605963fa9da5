"""A metadata store that was restored from a backup: asking what it lacks, and accepting it.

Owns RestoredStore as a client asks it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.errors import json_of
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import messages


async def restored_store(
    cluster: Cluster, *, accept: bool = False, without: Collection[int] = ()
) -> dict[str, Any] | None:
    """Return what the active controller reports; None where that is not served.

    With ``accept`` the cluster goes on with the restored store, ``without`` the brokers named.
    Raises Refused, and ClientError for no JSON.
    """
    connection = await cluster.any_connection()
    if not connection.speaks(ApiKey.RESTORED_STORE):
        return None
    request = messages.RestoredStoreRequest(accept=accept, without_brokers=sorted(without))
    answer: messages.RestoredStoreResponse = await connection.send(request)
    return json_of(answer, answer.report, "the restored store")
