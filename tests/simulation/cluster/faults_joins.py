"""Faults while a leader takes a follower into the ISR, between AlterIsr and its answer.

Owns the sequences of cuts and ends that meet that moment on purpose; single faults meet it too
rarely. The faults that they consist of are ``faults_nodes`` and ``faults_links``.
"""

from __future__ import annotations

import asyncio

from tests.simulation.cluster.journal import Place
from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import BrokerNode

Links = list[tuple[str, str]]


class JoinFaults(NodeControl):
    """What can happen while AlterIsr(+C) is under way."""

    async def lose_a_new_member(self) -> None:
        """AlterIsr(+C) is under way when C loses power; it is back before the request arrives."""
        place = self.rng.choice(list(self.states.places))
        known = self.states.places[place]
        others = [member for member in known.state.isr if member != known.state.leader]
        if known.state.leader < 0 or not others or self._busy or not self.cluster.active:
            return
        leader = self.cluster.broker(known.state.leader)
        member = self.cluster.broker(self.rng.choice(others))
        if not self._may_lose(member):
            return
        self._busy |= {leader.host, member.host}
        between = [(leader.host, member.host), (member.host, leader.host)]
        above = [(leader.host, node.host) for node in self.cluster.controllers]
        try:
            await self._steps_of_a_loss(place, leader, member, between, above)
        except TimeoutError:
            self._log("the new member was not where it was wanted")
        self.world.network.heal(*between, *above)
        self._busy.discard(leader.host)
        self._begin_again(member)

    async def _steps_of_a_loss(
        self,
        place: Place,
        leader: BrokerNode,
        member: BrokerNode,
        between: Links,
        above: Links,
    ) -> None:
        network, until = self.world.network, self.world.until
        for link in between:
            network.cut(*link, one_way=True)
        state = self.states.places[place]
        await until(lambda: member.node_id not in state.state.isr, 6)
        await asyncio.sleep(1.0)
        for link in above:
            network.cut(*link, one_way=True)
        network.heal(*between)
        await until(lambda: self._proposes(leader, place, member.node_id), 2)
        for link in between:
            network.cut(*link, one_way=True)
        if not self._only_these_lack(leader, member):
            self._log(f"{member.host} is spared: another broker has lost something meanwhile")
            return
        self._end(member, "lose_power")
        member.start()
        await until(lambda: member.ready, 2)
        self._say(f"{member.host} is back, {place} may get requests of its former incarnation")
        network.heal(*above)
        await asyncio.sleep(1.5)

    def _only_these_lack(self, leader: BrokerNode, member: BrokerNode) -> bool:
        """Whether all other replicas are whole, so that the member's disk may be lost.

        The cut took both out of ISRs, each of what the other leads; since all was whole when it
        began and no other fault controls them, the leader has lost nothing.
        """
        if not self.careful:
            return True
        lacking = self.states.not_whole(leader.node_id, member.node_id)
        return not lacking and not self._corrupted_beside(member)

    async def lose_the_answer_to_a_join(self) -> None:
        """AlterIsr(+C) is committed, A gets no response, C stops fetching, and A dies.

        C is in the ISR and stands before B: it is elected. All that A acknowledged meanwhile must
        be in its log, so A must have waited for it.
        """
        place = self._place_in_full_sync()
        if place is None or self._busy or not self.cluster.active:
            return
        leader = self.cluster.broker(self.states.places[place].state.leader)
        replicas = self.states.topics[place.topic].partitions[place.partition]
        member = self.cluster.broker(next(each for each in replicas if each != leader.node_id))
        self._busy |= {leader.host, member.host}
        between = [(leader.host, member.host), (member.host, leader.host)]
        answers = [(node.host, leader.host) for node in self.cluster.controllers]
        try:
            await self._steps_to_a_deaf_leader(place, leader, member, between, answers)
        except TimeoutError:
            self._log("the new member did not join where it was wanted")
        self.world.network.heal(*between, *answers)
        self._busy.discard(member.host)
        await self._again(leader, (0.3, 4))

    def _place_in_full_sync(self) -> Place | None:
        """Return a partition with a leader and two other replicas, all in its ISR."""
        places = [
            place
            for place, known in self.states.places.items()
            if self.states.place(place.topic, place.partition) == place
            and known.state.leader >= 0
            and len(known.state.isr) >= 3
        ]
        return self.rng.choice(places) if places else None

    async def _steps_to_a_deaf_leader(
        self,
        place: Place,
        leader: BrokerNode,
        member: BrokerNode,
        between: Links,
        answers: Links,
    ) -> None:
        network, until, known = self.world.network, self.world.until, self.states.places[place]
        epoch = known.state.leader_epoch
        for link in between:
            network.cut(*link, one_way=True)
        await until(lambda: member.node_id not in known.state.isr, 6)
        network.heal(*between)
        # Not sooner: one AlterIsr at a time, and another partition's may be the first.
        await until(lambda: self._proposes(leader, place, member.node_id), 4)
        for link in answers:
            network.cut(*link, one_way=True)
        await until(lambda: member.node_id in known.state.isr, 2)
        for link in between:
            network.cut(*link, one_way=True)
        if known.state.leader_epoch != epoch or not self._proposes(leader, place, member.node_id):
            self._log(f"{place} has moved on")
            return
        # Clients write to it: what two of three have is not committed.
        await asyncio.sleep(self.rng.uniform(0.5, 2))
        self._say(f"{leader.host} dies and does not know that {member.host} is in sync for {place}")
        self._end(leader, "kill")
        # It has no part in what follows until another leads.
        await until(lambda: known.state.leader_epoch != epoch, 8)

    @staticmethod
    def _proposes(leader: BrokerNode, place: Place, member: int) -> bool:
        if leader.running is None or not leader.ready:
            return False
        hosted = leader.running.broker.partitions.get(place.topic, place.partition)
        return hosted is not None and member in (hosted.proposed_isr or ())
