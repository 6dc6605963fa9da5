"""A metadata store that was restored from a backup: what it lacks, and its acceptance.

Owns the client's RestoredStore.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused, json_of
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages


async def restored_store(
    cluster: Cluster,
    *,
    accept: bool = False,
    without: Collection[int] = (),
    drop_unknown: Collection[str] = (),
) -> dict[str, Any] | None:
    """Return the active controller's report; None when that is not served.

    With ``accept`` the cluster continues with the restored store, ``without`` the brokers named.
    ``drop_unknown`` names topics and partitions to discard that the store does not know. Raises
    Refused, and ClientError for invalid JSON.
    """
    connection = await cluster.any_connection()
    if not connection.speaks(ApiKey.RESTORED_STORE):
        if connection.speaks(ApiKey.SASL_HANDSHAKE):
            why = (
                f"{connection.peer} requires a proof of the cluster secret: add "
                "--cluster-secret-file FILE, the servers' cluster.secret"
            )
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "the restored store", why)
        return None
    request = messages.RestoredStoreRequest(
        accept=accept, without_brokers=sorted(without), drop_unknown=list(drop_unknown)
    )
    answer: messages.RestoredStoreResponse = await connection.send(request)
    return json_of(answer, answer.report, "the restored store")
