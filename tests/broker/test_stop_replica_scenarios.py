"""KIP-570 and the ids of KIP-516 as text: requests handed straight to a broker, held back, twice.

Each file in `stop_replica_scenarios/` runs against the real handlers over a real connection, with
real logs on disk. The commands:

| command | what it does |
|---|---|
| `lead vN [full, unspecified] PARTITION…` | LeaderAndIsr: this broker leads (or `leader=`) |
| `stop vN PARTITION…` | StopReplica; v3 and later say `epoch=` and `delete` per partition |
| `hold NAME stop … (or lead …)`, `deliver NAME` | build a request now, hand it over later |
| `append TOPIC-P N` | N records to a partition that is led |
| `restart` | a clean stop, and a new life on the same disk with a new channel |
| `channel epoch=E number=N` | open another control channel |
| `disk` | what lies in the log directory |
| `hosted` | what is served, with its leader epoch |

A partition is `TOPIC(ID)-P` with `epoch=`, `isr=` (the ISR version), `incarnation=` (the partition
epoch) and the flags `delete` and `migrated`; without `(ID)` it has no id. `controller=` and
`broker=` before the partitions are the epochs of the request.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tests.support.controlled_broker import ControlledBroker, open_channel
from tests.support.lone_broker import Peer
from tests.support.scenario_text import Step, difference, parse
from tidelog.broker.control_plane import control_channel
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.replication.command_rules import (
    Apply,
    CommandRefusal,
    Incarnation,
    LeaderAndIsrCommand,
    LocalReplica,
    StopAction,
    StopReplicaCommand,
    decide_leader_and_isr,
    decide_stop_replica,
)
from tidelog.storage.checkpoints import encode_uuid
from tidelog.storage.names import parse_directory

FOLDER = Path(__file__).parent / "stop_replica_scenarios"
FILES = sorted(FOLDER.glob("*.txt"))
TYPES = {"unspecified": 0, "incremental": 1, "full": 2}
BROKER_EPOCH = 7
_PARTITION = re.compile(r"^(?P<topic>[a-z]+)(\((?P<id>[A-Z])\))?-(?P<index>\d+)$")


class Named(NamedTuple):
    """One partition of a request, as the text names it."""

    topic: str
    topic_id: UUID
    index: int
    numbers: dict[str, int]
    flags: set[str]


class Order(NamedTuple):
    """A request that was built, and may be handed over later."""

    request: Any
    version: int


def topic_id(letter: str | None) -> UUID:
    return UUID(int=0 if letter is None else ord(letter))


def letter_of(value: UUID) -> str:
    return "none" if value.int == 0 else chr(value.int)


def build(words: list[str]) -> Order:
    """`lead v5 full t(A)-0 epoch=5 …` -> a request."""
    command, version = words[0], int(words[1].removeprefix("v"))
    common = {"controller": 1, "broker": BROKER_EPOCH}
    kind = TYPES["incremental"]
    named: list[Named] = []
    for word in words[2:]:
        where = _PARTITION.match(word)
        key, _, number = word.partition("=")
        if where is not None:
            at = topic_id(where["id"])
            named.append(Named(where["topic"], at, int(where["index"]), {}, set()))
        elif number and named:
            named[-1].numbers[key] = int(number)
        elif number:
            common[key] = int(number)
        elif named:
            named[-1].flags.add(word)
        else:
            kind = TYPES[word]
    if command == "lead":
        return Order(lead_request(named, common, kind), version)
    assert command == "stop", command
    return Order(stop_request(named, common, version), version)


def lead_request(named: list[Named], common: dict[str, int], kind: int) -> Any:
    request = messages.LeaderAndIsrRequest
    topics: dict[tuple[str, UUID], Any] = {}
    for each in named:
        topic = topics.setdefault(
            (each.topic, each.topic_id),
            request.LeaderAndIsrTopicState(
                topic_name=each.topic, topic_id=each.topic_id, migrated="migrated" in each.flags
            ),
        )
        topic.partition_states.append(
            request.LeaderAndIsrPartitionState(
                partition_index=each.index,
                controller_epoch=common["controller"],
                leader=each.numbers.get("leader", 1),
                leader_epoch=each.numbers.get("epoch", 0),
                isr=[1],
                isr_version=each.numbers.get("isr", 0),
                replicas=[1],
                partition_epoch=each.numbers.get("incarnation", -1),
                birth_epoch=each.numbers.get("birth", 0),
            )
        )
    return request(
        controller_id=1,
        controller_epoch=common["controller"],
        broker_epoch=common["broker"],
        type=kind,
        topic_states=list(topics.values()),
    )


def stop_request(named: list[Named], common: dict[str, int], version: int) -> Any:
    request = messages.StopReplicaRequest
    made = request(
        controller_id=1, controller_epoch=common["controller"], broker_epoch=common["broker"]
    )
    if version < 3:
        made.delete_partitions = any("delete" in each.flags for each in named)
    for each in named:
        if version == 0:
            single = request.StopReplicaPartitionV0(each.topic, each.index)
            made.ungrouped_partitions.append(single)
        elif version < 3:
            made.topics.append(request.StopReplicaTopicV1(each.topic, [each.index]))
        else:
            state = request.StopReplicaPartitionState(
                each.index,
                each.numbers.get("epoch", -1),
                "delete" in each.flags,
                each.numbers.get("incarnation", -1),
            )
            topic = request.StopReplicaTopicState(each.topic, each.topic_id, [state])
            made.topic_states.append(topic)
    return made


def answered(order: Order, answer: Any) -> list[str]:
    """One line per partition, or the error of the whole request."""
    if answer.error_code != ErrorCode.NONE:
        return [f"refused {ErrorCode(answer.error_code).name}"]
    names = {topic.topic_id: topic.topic_name for topic in order.request.topic_states}
    errors = [(error.topic_name or names[error.topic_id], error) for error in _errors(answer)]
    if isinstance(order.request, messages.LeaderAndIsrRequest) and order.version >= 5:
        errors = [(names[t.topic_id], e) for t in answer.topics for e in t.partition_errors]
    return [f"{name}-{e.partition_index} {ErrorCode(e.error_code).name}" for name, e in errors]


def _errors(answer: Any) -> list[Any]:
    found: list[Any] = answer.partition_errors
    return found


class Stage:
    """The broker of one scenario, its channel, and the requests that are held back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: dict[str, Order] = {}
        self.channels = 0
        self.lone: ControlledBroker
        self.peer: Peer

    async def start(self) -> None:
        """A life of the broker, and a channel to it."""
        self.lone = ControlledBroker(self.folder)
        await self.lone.start()
        self.channels += 1
        self.peer = await Peer.connect(self.lone.port)
        assert await open_channel(self.peer, number=self.channels) is ErrorCode.NONE

    async def run(self, words: list[str]) -> list[str]:
        """Carry out one step and return what it answers."""
        match words[0]:
            case "lead" | "stop":
                return await self.hand_over(build(words))
            case "hold":
                self.held[words[1]] = build(words[2:])
                return []
            case "deliver":
                return await self.hand_over(self.held[words[1]])
            case "append":
                return self.append(words[1], int(words[2]))
            case "restart":
                await self.lone.stop()
                await self.start()
                return []
            case "channel":
                epoch, number = (int(word.partition("=")[2]) for word in words[1:])
                self.peer = await Peer.connect(self.lone.port)
                return [(await open_channel(self.peer, epoch, number)).name]
            case "disk":
                return sorted(self.disk())
            case "hosted":
                return sorted(self.hosted())
        raise ValueError(f"no such command: {words[0]}")

    async def hand_over(self, order: Order) -> list[str]:
        return answered(order, await self.peer.ask(order.request, order.version))

    def append(self, where: str, count: int) -> list[str]:
        found = _PARTITION.match(where)
        assert found is not None, where
        hosted = self.lone.broker.partitions.get(found["topic"], int(found["index"]))
        assert hosted is not None, f"{where} is not hosted"
        now_ms = int(time.time() * 1000)
        for _ in range(count):
            hosted.append(build_batch([NewRecord(now_ms, None, where.encode())]), now_ms)
        return []

    def disk(self) -> list[str]:
        """Every partition's directory: name, fate, id, and the records in its segments."""
        found = []
        for path in self.folder.iterdir():
            name = parse_directory(path.name) if path.is_dir() else None
            if name is None:
                continue
            fate = {"": "", "-delete": " deleted", "-stray": " stale"}[name.ending]
            count = sum(
                header.record_count
                for segment in path.glob("*.log")
                for _, header in walk(segment.read_bytes())
            )
            found.append(f"{name.partition}{fate} {self.identity(path)} records={count}")
        return found

    def identity(self, folder: Path) -> str:
        file = folder / "partition.metadata"
        if not file.exists():
            return "id=none"
        lines = dict(line.split(": ") for line in file.read_text().splitlines())
        at = next(x for x in "ABC" if encode_uuid(topic_id(x)) == lines["topic_id"])
        incarnation = (
            f" incarnation={lines['partition_epoch']}" if "partition_epoch" in lines else ""
        )
        return f"id={at}{incarnation}"

    def hosted(self) -> list[str]:
        return [
            f"{each.key} {each.role.value if each.assigned else 'stopped'} "
            f"epoch={each.leader_epoch} id={letter_of(each.topic_id)}"
            for each in self.lone.broker.partitions.all()
        ]


def play(file: Path, folder: Path) -> str | None:
    """Run a scenario in an empty folder; what differs, or None."""
    steps = parse(file.read_text(encoding="utf-8"))
    assert steps, "a scenario without steps"

    async def work() -> str | None:
        stage = Stage(folder)
        await stage.start()
        try:
            for step in steps:
                wrong = difference(file, step, await stage.run(step.words))
                if wrong is not None:
                    return wrong
        finally:
            await stage.lone.stop()
        return None

    return asyncio.run(work())


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_scenario(file: Path, tmp_path: Path) -> None:
    wrong = play(file, tmp_path)
    assert wrong is None, wrong


def skip_the_epoch(
    local: LocalReplica | None, order: StopReplicaCommand
) -> StopAction | CommandRefusal:
    return decide_stop_replica(local, replace(order, leader_epoch=-1))


def skip_the_topic_id(
    local: LocalReplica | None, order: StopReplicaCommand
) -> StopAction | CommandRefusal:
    return decide_stop_replica(local, replace(order, checks_topic_id=False))


def skip_the_partition_epoch(
    local: LocalReplica | None, order: StopReplicaCommand
) -> StopAction | CommandRefusal:
    return decide_stop_replica(local, replace(order, partition_epoch=-1))


def delete_all(
    local: LocalReplica | None, order: StopReplicaCommand
) -> StopAction | CommandRefusal:
    return decide_stop_replica(local, replace(order, delete=True))


def delete_nothing(
    local: LocalReplica | None, order: StopReplicaCommand
) -> StopAction | CommandRefusal:
    return decide_stop_replica(local, replace(order, delete=False))


def refuse_what_is_gone(
    local: LocalReplica | None, order: StopReplicaCommand
) -> StopAction | CommandRefusal:
    gone = CommandRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "planted")
    return gone if local is None else decide_stop_replica(local, order)


def stale_inverted(
    local: dict[tuple[str, int], Incarnation], full: dict[tuple[str, int], Incarnation]
) -> dict[tuple[str, int], str]:
    return dict.fromkeys(local.keys() & full.keys(), "planted")


def never_stale(
    local: dict[tuple[str, int], Incarnation], full: dict[tuple[str, int], Incarnation]
) -> dict[tuple[str, int], str]:
    return {}


def adopt_always(local: LocalReplica | None, order: LeaderAndIsrCommand) -> Apply | CommandRefusal:
    return decide_leader_and_isr(local, replace(order, migrated=True))


def adopt_never(local: LocalReplica | None, order: LeaderAndIsrCommand) -> Apply | CommandRefusal:
    return decide_leader_and_isr(local, replace(order, migrated=False))


def adopt_any_partition_epoch(
    local: LocalReplica | None, order: LeaderAndIsrCommand
) -> Apply | CommandRefusal:
    return decide_leader_and_isr(local, replace(order, birth_epoch=0))


def adopt_no_partition_epoch(
    local: LocalReplica | None, order: LeaderAndIsrCommand
) -> Apply | CommandRefusal:
    return decide_leader_and_isr(local, replace(order, birth_epoch=1))


def keep_the_former_incarnation(
    local: LocalReplica | None, order: LeaderAndIsrCommand
) -> Apply | CommandRefusal:
    return decide_leader_and_isr(local, replace(order, topic_id=UUID(int=0)))


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        ("decide_stop_replica", skip_the_epoch),
        ("decide_stop_replica", skip_the_topic_id),
        ("decide_stop_replica", skip_the_partition_epoch),
        ("decide_stop_replica", delete_all),
        ("decide_stop_replica", delete_nothing),
        ("decide_stop_replica", refuse_what_is_gone),
        ("stale_in_full", stale_inverted),
        ("stale_in_full", never_stale),
        ("decide_leader_and_isr", adopt_always),
        ("decide_leader_and_isr", adopt_never),
        ("decide_leader_and_isr", adopt_any_partition_epoch),
        ("decide_leader_and_isr", adopt_no_partition_epoch),
        ("decide_leader_and_isr", keep_the_former_incarnation),
    ],
)
def test_planted_bugs_are_found(
    rule: str, planted: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, rule, planted)
    for file in FILES:
        folder = tmp_path / file.stem
        folder.mkdir()
        if play(file, folder) is not None:
            return
    raise AssertionError(f"no scenario fails with {planted.__name__}")


def test_there_are_scenarios_of_every_kind() -> None:
    assert len(FILES) >= 12


def test_the_text_is_read_line_by_line() -> None:
    steps = parse("# a comment\n\nstop v4 t(A)-0 delete # why\n    t-0 NONE\n    t-1 NONE\ndisk\n")
    assert steps == [
        Step(3, ["stop", "v4", "t(A)-0", "delete"], ["t-0 NONE", "t-1 NONE"]),
        Step(6, ["disk"]),
    ]
    for bad in ("    an answer\n", "disk\n  too near\n", "disk\n      too far\n"):
        with pytest.raises(ValueError, match="answer"):
            parse(bad)
    shown = difference(Path("a.txt"), steps[1], ["t-0 id=A records=1"])
    assert (
        shown == "a.txt, line 6: disk\nanswered\n    t-0 id=A records=1\ninstead of\n    (nothing)"
    )
    assert difference(Path("a.txt"), steps[1], []) is None
