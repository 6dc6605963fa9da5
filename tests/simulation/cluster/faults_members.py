"""What happens to a group: members killed, paused, cut off or leaving; a coordinator that moves.

Owns these faults and their pace. They come beside those of the cluster, from a stream of their own,
so that neither thins the other out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from tests.simulation.cluster.clients import Administrator
from tests.simulation.cluster.members import OFFSETS_TOPIC, Group, Member
from tests.simulation.kernel import World

WEIGHTS: Mapping[str, float] = {
    "kill": 2.0,
    "pause": 3.0,
    "cut": 2.0,
    "leave": 2.0,
    "late_commit": 3.0,
    "move_coordinator": 2.0,
}


class MemberFaults:
    """Faults of a group's members; one fault at a time controls a member."""

    def __init__(
        self,
        group: Group,
        admin: Administrator,
        world: World,
        rng: random.Random,
        say: Callable[[str], None],
        weights: Mapping[str, float],
    ) -> None:
        self.group = group
        self.admin = admin
        self.world = world
        self.rng = rng
        self.counts: dict[str, int] = {}
        self._weights = dict(weights)
        self._say = say
        self._busy: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Begin faults for ever; end it with ``cancel``, then ``heal``."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 5))
            name = self.rng.choices(list(self._weights), list(self._weights.values()))[0]
            self.counts[name] = self.counts.get(name, 0) + 1
            self.world.trace.event("member-fault", name)
            self._tasks.append(asyncio.ensure_future(getattr(self, name)()))

    def heal(self) -> None:
        """End everything that is under way; the network is healed by the cluster's faults."""
        for task in self._tasks:
            if task.done():
                task.result()
            task.cancel()
        self._busy.clear()
        self.group.heal()

    def _take(self) -> Member | None:
        free = [x for x in self.group.members if x.host not in self._busy and x.alive]
        if not free:
            return None
        member = self.rng.choice(free)
        self._busy.add(member.host)
        return member

    async def kill(self) -> None:
        """kill -9, and back: as a new member, while the former one has a session left."""
        member = self._take()
        if member is not None:
            self._say(f"kill {member.host}")
            member.kill()
            await asyncio.sleep(self.rng.uniform(0.1, 8))
            self._say(f"start {member.host}")
            member.start()
            self._busy.discard(member.host)

    async def pause(self) -> None:
        """SIGSTOP, mostly for longer than a session: it goes on with what it thinks it has."""
        member = self._take()
        if member is not None and member.process is not None:
            self._say(f"pause {member.host}")
            member.process.pause()
            await asyncio.sleep(self.rng.choice((1, 6, 12)) * self.rng.uniform(0.7, 1))
            self._say(f"resume {member.host}")
            member.process.resume()
            self._busy.discard(member.host)

    async def cut(self) -> None:
        """From one broker or from all of them, in both directions or one."""
        member = self._take()
        if member is None:
            return
        brokers = [node.host for node in self.group.outside.cluster.brokers]
        some = brokers if self.rng.random() < 0.4 else [self.rng.choice(brokers)]
        out = [(member.host, broker) for broker in some]
        back = [(broker, member.host) for broker in some]
        cuts = self.rng.choice((out, back, out + back))
        self._say(f"cut {' '.join(f'{a}>{b}' for a, b in cuts)}")
        for source, target in cuts:
            self.world.network.cut(source, target, one_way=True)
        await asyncio.sleep(self.rng.choice((1, 8)) * self.rng.uniform(0.3, 1))
        self._say(f"mend {' '.join(f'{a}>{b}' for a, b in cuts)}")
        self.world.network.heal(*cuts)
        self._busy.discard(member.host)

    async def leave(self) -> None:
        """It leaves properly, sometimes all of them at once, and comes back."""
        leaving = self.group.members if self.rng.random() < 0.2 else [self._take()]
        for member in leaving:
            if member is not None:
                self._say(f"{member.host} leaves")
                member.leaves = True
                self._busy.discard(member.host)

    async def late_commit(self) -> None:
        """A commit of a generation that is over, which sat in a buffer until now."""
        shares = self.group.book.shares
        newest = max((share.generation for share in shares), default=-1)
        old = [each for each in self.group.book.commits if 0 <= each.generation < newest]
        if old:
            late = self.rng.choice(old[-20:])
            self._say(f"a commit of generation {late.generation} comes late, {newest} is present")
            await self.group.repeat(late)

    async def move_coordinator(self) -> None:
        """The preferred leader of the group's partition takes over, where it is not the leader."""
        self._say("elect the preferred coordinator")
        await self.admin.elect(OFFSETS_TOPIC, 0, unclean=False)
