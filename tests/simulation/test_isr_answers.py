"""A leader's changes of the ISR under random answers: lost ones, late ones, every error code.

The real broker leads one partition in virtual time. The controller is a model: it changes the ISR
or does not, and answers what it likes; now and then it takes a member out by itself. Later it
answers truthfully. Then no change may be in flight any more, the leader's ISR is the controller's,
all that live are in it, and every acks=all was answered; and at no time may the high watermark be
above what a member of the controller's ISR holds. In some histories the leader leads on in newer
leader epochs, in which a replica may have lost what it held: requests that wait at the leader stay.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.kernel import World
from tests.support.lone_broker import LoneBroker
from tidelog.broker.partitions.leadership import Leadership
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.errors import ConnectionLost
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.replication import isr_change
from tidelog.replication.isr_change import Settled

LEADER, FOLLOWERS = 1, (2, 3)
LIFE = 7
LAG_MS = 300
BAD_SECONDS, GOOD_SECONDS = 12.0, 12.0
CERTAIN_REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)
OPEN_ERRORS = [code for code in ErrorCode if code not in (ErrorCode.NONE, *CERTAIN_REFUSALS)]

_Response = messages.AlterIsrResponse


class Story:
    """One history; also the session that ``IsrChanges`` asks."""

    broker_epoch = LIFE

    def __init__(self, world: World, lone: LoneBroker) -> None:
        self.world, self.lone = world, lone
        self.rng = world.random("story")
        self.is_bad = True
        self.epoch, self.version = 1, 0
        self.isr: tuple[int, ...] = (1, 2, 3)
        self.required = self.rng.choice((1, 2))
        self.held = dict.fromkeys(FOLLOWERS, 0)
        self.follows = dict.fromkeys(FOLLOWERS, 1)
        self.alive = set(FOLLOWERS)
        self.answers: dict[int, ErrorCode] = {}
        self.asked = 0
        self.hosted = self._order({"min.insync.replicas": str(self.required)})

    def _order(self, configs: dict[str, str] | None = None) -> HostedPartition:
        """LeaderAndIsr: what the controller holds for true now."""
        return self.lone.lead(
            "t",
            configs=configs,
            epoch=self.epoch,
            isr=self.isr,
            isr_version=self.version,
            replicas=(LEADER, *FOLLOWERS),
        )

    # -- the controller

    async def request(self, request: Any) -> Any:
        """AlterIsr."""
        ((part,),) = [topic.partitions for topic in request.topics]
        self.asked += 1
        await asyncio.sleep(self.rng.uniform(0, 0.03))
        if not self.is_bad:
            return self._answer(self._decide(part))
        if self.rng.random() < 0.3:
            # Nothing of it was done. Members are looked at after epoch and version.
            is_present = (part.leader_epoch, part.isr_version) == (self.epoch, self.version)
            refusals = CERTAIN_REFUSALS if is_present else ()
            error = self.rng.choice([*refusals, *refusals, *OPEN_ERRORS])
        else:
            error = self._decide(part)
            error = self.rng.choice([error, error, *self.rng.sample(OPEN_ERRORS, 2)])
        await asyncio.sleep(self.rng.uniform(0, 0.03))
        match self.rng.randrange(6):
            case 0:
                raise ConnectionLost("planted")
            case 1:
                return _Response(error_code=self.rng.choice(OPEN_ERRORS))
            case 2:
                return _Response(topics=[])
            case 3 if error not in CERTAIN_REFUSALS:
                # Another leader, an epoch or a version that is past.
                return self._answer(error, back=self.rng.randint(1, 3))
            case _:
                return self._answer(error)

    def _decide(self, part: Any) -> ErrorCode:
        if part.leader_epoch != self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if part.isr_version != self.version:
            return ErrorCode.INVALID_UPDATE_VERSION
        if not self.alive.issuperset(set(part.new_isr) - {LEADER, *self.isr}):
            return ErrorCode.INELIGIBLE_REPLICA
        if tuple(part.new_isr) != self.isr:
            self.isr, self.version = tuple(part.new_isr), self.version + 1
            self.check()
        return ErrorCode.NONE

    def _answer(self, error: ErrorCode, back: int = 0) -> Any:
        part = _Response.PartitionData(
            error_code=int(error),
            leader_id=LEADER,
            leader_epoch=self.epoch - back // 2,
            isr=list(self.isr),
            isr_version=self.version - back,
        )
        return _Response(topics=[_Response.TopicData("t", [part])])

    async def takes_members_out(self) -> None:
        """A member is suspected: it leaves the ISR by a LeaderAndIsr of the same leader epoch."""
        longest_s = self.rng.choice((3, 3, 30))
        while self.is_bad:
            await asyncio.sleep(self.rng.uniform(0.5, longest_s))
            if not self.is_bad:
                return
            self.isr = tuple(x for x in self.isr if x == LEADER or self.rng.random() < 0.6)
            self.version += 1
            self.epoch += self.rng.random() < 0.4
            epoch, version = self.epoch, self.version
            for node_id in FOLLOWERS:
                if node_id not in self.isr and self.rng.random() < 0.3:
                    # Its copy is damaged, and rebuilt in the new epoch.
                    self.epoch = epoch = max(epoch, self.follows[node_id] + 1)
                    self.held[node_id] = 0
            await asyncio.sleep(self.rng.uniform(0, 0.1))
            if (epoch, version) == (self.epoch, self.version):
                self._order()
            for node_id in FOLLOWERS:
                if self.rng.random() < 0.8:
                    self.follows[node_id] = epoch

    # -- the others

    async def fetches(self, node_id: int) -> None:
        """A follower that is up to date at once when it lives."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.005, 0.05))
            if self.is_bad and self.rng.random() < 0.02:
                self.alive ^= {node_id}
            if not self.is_bad:
                self.follows[node_id] = self.epoch
            if node_id in self.alive and self.follows[node_id] == self.hosted.leader_epoch:
                self.held[node_id] = self.hosted.end_offset
                now_ms = self.lone.broker.clock.monotonic_ms()
                self.hosted.follower_fetched(node_id, self.held[node_id], LIFE, now_ms, 0)
                self.lone.broker.isr_changes.fetched(self.hosted, node_id)
                self.check()

    async def produces(self) -> None:
        """acks=all, while there are enough in sync."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.01, 0.1))
            if len(self.hosted.isr) < self.hosted.required_in_sync:
                continue
            now_ms = self.lone.broker.clock.wall_ms()
            offset = self.hosted.end_offset
            self.hosted.append(build_batch([NewRecord(now_ms, None, b"x")]), now_ms)

            def told(error: ErrorCode, offset: int = offset) -> None:
                self.answers[offset] = error

            self.hosted.when_committed(offset, told, patient=False)

    def check(self) -> None:
        """What is committed is on every member of the ISR that could be elected from."""
        for member in set(self.isr) & set(FOLLOWERS):
            assert self.hosted.high_watermark <= self.held[member], (member, self.isr)

    async def is_told(self) -> None:
        """The whole history."""
        loop = asyncio.get_running_loop()
        works = [self.fetches(2), self.fetches(3), self.produces(), self.takes_members_out()]
        tasks = [loop.create_task(each) for each in works]
        try:
            await asyncio.sleep(BAD_SECONDS)
            self.is_bad = False
            self.alive |= {self.rng.choice(FOLLOWERS)}
            await asyncio.sleep(GOOD_SECONDS)
            tasks[2].cancel()
            await asyncio.sleep(1)
            for each in tasks:
                if each.done() and not each.cancelled():
                    each.result()
            self._check()
        finally:
            for each in tasks:
                each.cancel()

    def _check(self) -> None:
        hosted = self.hosted
        leadership = hosted.leadership
        assert leadership is not None and leadership.change is None, "a change is still in flight"
        assert (hosted.isr, hosted.isr_version) == (self.isr, self.version)
        assert set(self.isr) == {LEADER, *self.alive}
        assert hosted.high_watermark == hosted.end_offset == len(self.answers)
        allowed = {ErrorCode.NONE}
        if self.required > 1:
            allowed.add(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert allowed.issuperset(self.answers.values()), set(self.answers.values())
        assert self.asked > 5 and len(self.answers) > 50


def run_script(folder: Path, seed: int) -> None:
    with World(seed) as world:
        process = world.machine("node1").process("broker")

        async def main() -> None:
            configs = {"replica.lag.time.max.ms": LAG_MS, "log.dirs": "/data"}
            lone = LoneBroker(folder, configs, process.seams)
            await lone.start()
            story = Story(world, lone)
            lone.session = story
            lone.broker.isr_changes.start()
            try:
                await story.is_told()
            finally:
                await lone.broker.isr_changes.stop()
                await lone.stop()

        async def in_process() -> None:
            await process.run(main())

        print(f"seed {seed}")
        world.run(in_process())


@pytest.mark.parametrize("seed", range(25))
def test_a_change_of_the_isr_comes_to_rest_whatever_was_answered(tmp_path: Path, seed: int) -> None:
    run_script(tmp_path, seed)


def test_more_histories(tmp_path: Path) -> None:
    """Other ones in each run; the seed is printed."""
    first = random.SystemRandom().randrange(1_000_000)
    for seed in range(first, first + 15):
        run_script(tmp_path, seed)


def test_a_planted_end_of_asking_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first version's rule: some errors were taken for the word of a successor."""
    real = isr_change.IsrChange.left_open

    def for_ever(self: Any, now_ms: int) -> None:
        real(self, now_ms)
        self.due_ms = now_ms + 10**9

    monkeypatch.setattr(isr_change.IsrChange, "left_open", for_ever)
    with pytest.raises(AssertionError, match="in flight"):
        for seed in range(10):
            run_script(tmp_path, seed)


def test_a_planted_haste_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that says nothing is taken for a refusal."""
    real = isr_change.outcome

    def hasty(change: Any, leader: int, known_isr: tuple[int, ...], answer: Any) -> Any:
        found = real(change, leader, known_isr, answer)
        return Settled(known_isr, change.isr_version) if found is None else found

    monkeypatch.setattr("tidelog.broker.control_plane.isr_changes.outcome", hasty)
    with pytest.raises(AssertionError):
        for seed in range(25):
            run_script(tmp_path, seed)


def test_a_planted_memory_of_the_former_epoch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that leads on counts on what its followers held in the former epoch."""
    begin = Leadership.__init__

    def remembering(
        self: Any, epoch: int, replicas: Any, start: int, former: Leadership | None = None
    ) -> None:
        begin(self, epoch, replicas, start, former)
        if former is not None:
            self.followers.update(former.followers)

    monkeypatch.setattr(Leadership, "__init__", remembering)
    with pytest.raises(AssertionError):
        # One history of some two hundred shows it: these are around one that does (387).
        for seed in range(380, 405):
            run_script(tmp_path, seed)
