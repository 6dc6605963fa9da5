"""The founding of a cluster on an empty store, and what shows that the store is not new.

Owns the evidence and the time for it. Not what follows from it: see ``decisions.lost_store``.

A new cluster is founded at once, so that its brokers start without a wait. What a broker of another
cluster says counts as evidence as long as nothing was created. The first change waits until the
brokers of a former life, which seek their controller all the time, have had ``EVIDENCE_MS`` to find
this one. A start that has proof, like that of `tidelog up` on an empty folder, waits for nothing.
Source: docs/decisions/0085.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.lost_store import WAYS_OUT, adopt, is_empty
from tidelog.controller.decisions.problems import problem
from tidelog.controller.performing import Performer
from tidelog.model.errors import ErrorCode
from tidelog.model.ways_out import RESTORED
from tidelog.protocol import messages
from tidelog.runtime.clock import Clock
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

EVIDENCE_MS = 1_000
"""How long the first change of an empty store waits: twice the longest pause of a broker that seeks
its controller (``broker.control_plane.session``)."""

STRANGER_MS = 60_000
"""How long a broker of another cluster stays in the doctor's report after its last attempt."""

MOST_STRANGERS = 100

ASK_MS = 1_000
"""How long the other controllers may take to name their cluster."""


class Founding:
    """What one controller process knows about the age of its store."""

    def __init__(
        self, performer: Performer, clock: Clock, load_again: Callable[[str], None]
    ) -> None:
        """``load_again`` makes the controller load its store again, and says why."""
        self._performer, self._clock, self._load_again = performer, clock, load_again
        self.is_proven = False
        """Whether the starter of this process has proof that the cluster is new."""
        self.belongs_to: str | None = None
        """The cluster that this process belongs to: that of its log directories, or the one whose
        controller it was."""
        self._open_until_ms: int | None = None
        self._founded_here = False
        self._strangers: dict[int, tuple[str, int]] = {}
        """Brokers of other clusters: their cluster, and when they were last refused."""
        self.why_contested: str | None = None
        """Why no change is accepted: this process founded a cluster where another has brokers."""

    def begin(self, cluster: ClusterState) -> None:
        """The controller becomes active with this state."""
        self.belongs_to = cluster.cluster_id
        self._open_until_ms = None
        if is_empty(cluster) and not self.is_proven:
            self._founded_here = True
            self._open_until_ms = self._now_ms() + EVIDENCE_MS

    async def settled(self) -> None:
        """Wait until the brokers of a former life have had the time to show that there was one."""
        while self._open_until_ms is not None:
            left_ms = self._open_until_ms - self._now_ms()
            if left_ms <= 0:
                self._open_until_ms = None
                return
            await asyncio.sleep(left_ms / 1000)

    async def witness(self, broker: int, cluster_id: str) -> bool:
        """Take up that a broker belongs to a cluster; return whether the state changed by it.

        Then this controller loads everything again. Raises NotActive.
        """
        performer = self._performer
        if not cluster_id or self._is_own(cluster_id):
            return False
        if not self.is_proven and is_empty(performer.cluster):
            who = f"broker {broker} belongs to it"
            is_lost, _ = await performer.perform(lambda state: adopt(state, cluster_id, who))
            if is_lost:
                self.belongs_to, self._founded_here = cluster_id, False
                logger.error("%s", performer.cluster.went_back)
                self._load_again("the cluster is not new: everything is loaded again")
                return True
        # Another broker of that cluster may have shown it while this one waited for its turn.
        if not self._is_own(cluster_id):
            self._note(broker, cluster_id)
        return False

    def _is_own(self, cluster_id: str) -> bool:
        cluster = self._performer.cluster
        return cluster_id in (cluster.cluster_id, cluster.past.founded_as)

    def _note(self, broker: int, cluster_id: str) -> None:
        self._strangers.pop(broker, None)
        if len(self._strangers) >= MOST_STRANGERS:
            del self._strangers[next(iter(self._strangers))]
        self._strangers[broker] = (cluster_id, self._now_ms())
        own = self._performer.cluster.cluster_id
        if self._founded_here and self.why_contested is None and cluster_id != own:
            self.why_contested = (
                f"Broker {broker} belongs to cluster {cluster_id}, and this controller founded "
                f"{own} on an empty store: no topic is created or changed any longer. If the store "
                f"of {cluster_id} was lost, stop this node, move its metadata.store and log.dirs "
                "away and start it while the other brokers run: it then waits for a backup or "
                f"{RESTORED}. If the broker seeks the wrong controller, correct its "
                "controller.quorum.bootstrap.servers and restart this node."
            )
            logger.error("%s", self.why_contested)

    def strangers(self) -> dict[int, str]:
        """Return the cluster of each broker that was refused lately for belonging to another.

        What was refused under another id does not count once this cluster has the id.
        """
        since = self._now_ms() - STRANGER_MS
        lately = {
            x: name for x, (name, seen_at) in list(self._strangers.items()) if seen_at > since
        }
        return {x: name for x, name in lately.items() if not self._is_own(name)}

    def problems(self) -> list[dict[str, Any]]:
        """Return what the doctor shows."""
        if self.why_contested is not None:
            advice = "Decide which of the two clusters goes on before anything is written."
            return [problem("store_contested", self.why_contested, advice)]
        strangers = self.strangers()
        if not strangers:
            return []
        named = ", ".join(
            f"{broker} (of cluster {name})" for broker, name in sorted(strangers.items())
        )
        what = f"Brokers of another cluster seek this controller and are refused: {named}."
        advice = (
            "Correct their controller.quorum.bootstrap.servers. If this cluster is the wrong one, "
            "the store of the other was lost: docs/operating/recover.md, When the store is lost."
        )
        return [problem("brokers_of_another_cluster", what, advice, brokers=sorted(strangers))]

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()


async def known_elsewhere(
    addresses: Sequence[tuple[str, int]],
    secret: ClusterSecret | None,
    tls: TlsFiles | None = None,
) -> str | None:
    """Return a sentence if another controller is active for a cluster, which is not this store's.

    Asks all addresses of ``controller.quorum.bootstrap.servers`` at once; this process does not
    listen yet, so that its own one is silent.
    """

    async def ask(host: str, port: int) -> str | None:
        try:
            connection = await connect(
                host, port, connect_timeout_ms=ASK_MS, secret=secret, tls=tls
            )
            try:
                request = messages.DescribeClusterRequest()
                answer = await connection.send(request, 0, ASK_MS)
            finally:
                connection.close()
        except ClientError:
            return None
        if answer.error_code != ErrorCode.NONE or not answer.cluster_id:
            return None
        return (
            f"The controller at {host}:{port} is active for cluster {answer.cluster_id}, and this "
            f"metadata store is empty: check metadata.store. {WAYS_OUT}"
        )

    answers = await asyncio.gather(*(ask(*address) for address in addresses))
    return next((reply for reply in answers if reply is not None), None)
