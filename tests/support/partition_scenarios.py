"""Scenarios of one controller's decisions about partitions: elections, ISR changes and moves.

A step is a command; its outcome is indented below it (grammar: `scenario_text`). Every command that
decides shows each partition whose state it changed, or `no change`; what it decides goes through a
store and is compared with what a restart would load. The commands:

| command | what it does |
|---|---|
| `brokers 1 2 3` | brokers register, in this order, with broker epochs 1, 2, 3 |
| `topic t 1,2,3 [2,3,1 …] [CONFIG=VALUE …]` | create a topic: the replicas of each partition |
| `state t-0 leader=2 epoch=5 isr=2,3 [eligible=1] [returned=1] [unclean]` | set a state |
| `dies 1 [2 …]` | sessions time out: the brokers are removed together |
| `suspect 1`, `heartbeat 1` | a broker falls silent; its next heartbeat arrives |
| `leaves 1` | controlled shutdown: a heartbeat says that the broker wants to stop |
| `presume 1` | this controller is new: it knows the broker from the store only |
| `damaged 1 t-0` | a broker reports its replica as damaged |
| `returns 1 END [log=EPOCH:OFFSET] [missing]` | a broker registers again; see below |
| `elect preferred t-0`, `elect unclean t-0` | ElectLeaders (KIP-460) |
| `rebalance PERCENT` | the timer of `leader.imbalance.per.broker.percentage` |
| `configure t CONFIG=VALUE …` | replace the topic's configuration |
| `propose LEADER t-0 epoch=E version=V isr=… [epochs=…]` | AlterIsr (KIP-497) of a broker |
| `reassign t-0 4,5,6`, `cancel t-0` | AlterPartitionReassignments (KIP-455) |
| `complete` | moves whose targets are all in sync end, as after every change of a controller |
| `restart` | another controller loads the store |
| `stops` | the replicas that brokers would be sent to stop now |
| `confirm 1` | a broker confirms the replicas that it was sent to stop |
| `list` | ListPartitionReassignments |

END is how the last incarnation of the broker ended: `clean`, `crashed`, `unclean` (power was lost:
acknowledged records may be missing), or `same` (it still runs; only its connection is new). `log=`
is where the log of each of its replicas ends (leader epoch of the last record, end offset);
`missing`: the replica is not in its inventory.

The outcome also has what a move changed: `t-0 replicas=…`, `t-0 original=…` (the replicas before
the first change) and `t-0 owes 4@7` (the stops noted, each with its leader epoch).

`propose` takes the flags `handled` (data-loss handling is done, KIP-704), `other-id` (another topic
id) and `old-configs` (the leader does not know the present configurations).

In a state `eligible=` are the eligible replicas, `returned=` the members that came back without
certainty about their data, `unclean` the flag of KIP-704. `debt t-0 …` is the record of an unclean
election that is not handled yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from tests.support.controller_world import World
from tests.support.scenario_text import difference, parse
from tidelog.controller.decisions import (
    deletion,
    isr,
    moves,
    reassignments,
    rebalance,
    registration,
    soft_state,
)
from tidelog.controller.decisions.cluster import NO_ID, ClusterState, LogEnd
from tidelog.controller.decisions.configuration import Resource, replace_configs
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.registration import Address, Registration
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import stops_of
from tidelog.metadata.records import PartitionState
from tidelog.model.admin_requests import ElectionType
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

ENDS = {
    "clean": FormerRegistration.CLEAN,
    "crashed": FormerRegistration.CRASHED,
    "unclean": FormerRegistration.UNCLEAN,
    "same": FormerRegistration.SAME,
}
KIND_TOPIC = 2
OTHER_ID = UUID(int=999)


class Arguments(NamedTuple):
    """The words after a command: `key=value`, and those without a key."""

    plain: list[str]
    named: dict[str, str]

    def flag(self, name: str) -> bool:
        return name in self.plain

    def number(self, name: str, default: int = -1) -> int:
        return int(self.named.get(name, default))

    def brokers(self, name: str) -> list[int]:
        return numbers(self.named.get(name, ""))


def arguments(words: Sequence[str]) -> Arguments:
    """Sort the words after a command."""
    pairs = [word.partition("=") for word in words]
    return Arguments(
        [word for word, equals, _ in pairs if not equals],
        {key: value for key, equals, value in pairs if equals},
    )


def numbers(text: str) -> list[int]:
    """`1,2` -> [1, 2]; nothing for an empty text."""
    return [int(word) for word in text.split(",") if word]


def place(word: str) -> TopicPartition:
    """`t-0` -> partition 0 of t."""
    topic, _, index = word.rpartition("-")
    return TopicPartition(topic, int(index))


def shown(state: PartitionState) -> str:
    """A state in the words of a scenario; what is empty is left out."""
    leader = "none" if state.leader == -1 else state.leader
    words = [f"leader={leader}", f"epoch={state.leader_epoch}", f"isr={_list(state.isr)}"]
    if state.target_replicas is not None:
        words.append(f"targets={_list(state.target_replicas)}")
    if state.eligible_replicas:
        words.append(f"eligible={_list(state.eligible_replicas)}")
    if state.unclean_members:
        words.append(f"returned={_list(state.unclean_members)}")
    if state.is_unclean_leader:
        words.append("unclean")
    return " ".join(words)


def _list(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "none"


class Stage:
    """The cluster of one scenario."""

    def __init__(self) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        self.incarnations = itertools.count(1)
        self.running: dict[int, int] = {}
        """Broker -> the number of its incarnation."""

    def run(self, words: list[str]) -> list[str]:
        """Carry out one step and return its outcome, line by line."""
        command: Callable[[Arguments], list[str]] | None = getattr(self, f"_do_{words[0]}", None)
        if command is None:
            raise ValueError(f"no such command: {words[0]}")
        return command(arguments(words[1:]))

    def decided(self, decide: Callable[[], Any], *lines: str) -> list[str]:
        """Make a decision durable; return the given lines and what it changed, or `no change`."""
        before, debts, placed = dict(self.cluster.states), self.debts(), self.placements()
        self.world.do(decide())
        found = list(lines)
        for where, state in sorted(self.cluster.states.items()):
            if state != before.get(where):
                found.append(f"{where} {shown(state)}")
        found += self.moved(placed)
        found += [line for line in self.debts() if line not in debts]
        found += [f"handled: {line}" for line in debts if line not in self.debts()]
        return found or ["no change"]

    def placements(self) -> dict[tuple[TopicPartition, str], str]:
        """Return R, O and the noted stops of every partition."""
        found = {}
        for where in self.cluster.all_partitions():
            history = self.cluster.topic_histories[where.topic]
            owed = history.pending_stops.get(where.partition, {})
            original = history.original_replicas.get(where.partition, [])
            notes = [f"{broker}@{epoch}" for broker, epoch in sorted(owed.items())]
            found[where, "replicas="] = _list(self.cluster.replicas(where))
            found[where, "original="] = _list(original)
            found[where, "owes "] = ",".join(notes) or "none"
        return found

    def moved(self, before: dict[tuple[TopicPartition, str], str]) -> list[str]:
        """Return a line for each placement that is another one than before."""
        return [
            f"{key[0]} {key[1]}{value}"
            for key, value in self.placements().items()
            if key in before and before[key] != value
        ]

    def debts(self) -> list[str]:
        """The unclean elections that are not handled yet."""
        return [
            f"debt {name}-{index} leader={debt.leader} epoch={debt.leader_epoch}"
            for name, memory in sorted(self.cluster.topic_histories.items())
            for index, debt in sorted(memory.unclean.items())
        ]

    # --- what happens to brokers ---------------------------------------------------------------

    def _do_brokers(self, words: Arguments) -> list[str]:
        for name in words.plain:
            self.running[int(name)] = next(self.incarnations)
            epoch = self.world.do(self.registration(int(name), FormerRegistration.CLEAN, {}))
            assert not isinstance(epoch, RequestRefusal), epoch
        return []

    def registration(
        self, broker: int, end: FormerRegistration, inventory: dict[tuple[UUID, int], LogEnd]
    ) -> Any:
        """Return the decision about a registration."""
        request = Registration(
            broker,
            "",
            UUID(int=self.running[broker]),
            UUID(int=broker),
            (Address("PLAINTEXT", "h", 9092, "PLAINTEXT"),),
            None,
            end,
            inventory,
        )
        self.cluster.inventories[broker] = inventory
        return registration.register(self.cluster, request, 7)

    def _do_returns(self, words: Arguments) -> list[str]:
        name, end, *_ = words.plain
        broker = int(name)
        if end != "same":
            self.running[broker] = next(self.incarnations)
            self.cluster.shutting_down.discard(broker)
        inventory = {}
        for where, state in self.cluster.states.items():
            if broker in self.cluster.hosts(where) and not words.flag("missing"):
                epoch, _, offset = words.named.get("log", f"{state.leader_epoch}:100").partition(
                    ":"
                )
                log_end = LogEnd(-1, int(epoch), int(offset))
                inventory[self.cluster.topic_id(where.topic), where.partition] = log_end
        decision = self.registration(broker, ENDS[end], inventory)
        lines = self.decided(lambda: decision, f"broker {broker} epoch={decision.answer}")
        self.cluster.suspected.discard(broker)
        self.cluster.presumed.discard(broker)
        return lines

    def _do_dies(self, words: Arguments) -> list[str]:
        dead = [int(name) for name in words.plain]
        lines = self.decided(lambda: registration.expire(self.cluster, dead))
        for broker in dead:
            soft_state.forget(self.cluster, broker)
        return lines

    def _do_suspect(self, words: Arguments) -> list[str]:
        self.cluster.suspected.update(map(int, words.plain))
        return self.decided(lambda: registration.replace_unfit(self.cluster))

    def _do_heartbeat(self, words: Arguments) -> list[str]:
        broker = int(words.plain[0])
        self.cluster.suspected.discard(broker)
        return self.decided(lambda: registration.settle_returned(self.cluster, broker))

    def _do_leaves(self, words: Arguments) -> list[str]:
        broker = int(words.plain[0])
        self.cluster.shutting_down.add(broker)
        lines = self.decided(lambda: registration.replace_unfit(self.cluster))
        waits = registration.leads_what_others_could(self.cluster, broker)
        return [*lines, f"broker {broker} {'still leads' if waits else 'may stop'}"]

    def _do_presume(self, words: Arguments) -> list[str]:
        self.cluster.presumed.update(map(int, words.plain))
        return []

    def _do_damaged(self, words: Arguments) -> list[str]:
        broker, where = int(words.plain[0]), place(words.plain[1])
        self.cluster.broken.add((broker, where))
        return self.decided(lambda: registration.take_out(self.cluster, [where]))

    # --- what is asked of the controller -------------------------------------------------------

    def _do_topic(self, words: Arguments) -> list[str]:
        name, *lists = words.plain
        assignment = tuple((index, tuple(numbers(each))) for index, each in enumerate(lists))
        topic = TopicToCreate(name, assignment=assignment, configs=tuple(words.named.items()))
        (created,) = self.world.create(topic)
        assert created.refusal is None, created
        return []

    def _do_state(self, words: Arguments) -> list[str]:
        where = place(words.plain[0])
        leader = words.named["leader"]
        state = PartitionState(
            -1 if leader == "none" else int(leader),
            words.number("epoch"),
            1,
            words.brokers("isr"),
            eligible_replicas=words.brokers("eligible"),
            unclean_members=words.brokers("returned"),
            is_unclean_leader=words.flag("unclean"),
            target_replicas=self.cluster.moves.get(where),
        )
        self.world.commit((put_state(self.cluster, where, state),))
        return []

    def _do_elect(self, words: Arguments) -> list[str]:
        kind = ElectionType[words.plain[0].upper()]
        places = [place(word) for word in words.plain[1:]]
        decision = elect_on_request(self.cluster, kind, places)
        refused = [f"{w} {why.error.name}" for w, why in decision.answer.items() if why is not None]
        return self.decided(lambda: decision, *refused)

    def _do_rebalance(self, words: Arguments) -> list[str]:
        return self.decided(lambda: rebalance.rebalance(self.cluster, int(words.plain[0])))

    def _do_reassign(self, words: Arguments) -> list[str]:
        where, *targets = words.plain
        brokers = tuple(numbers(targets[0])) if targets else ()
        return self._asked(reassignments.Asked(place(where), brokers))

    def _do_cancel(self, words: Arguments) -> list[str]:
        return self._asked(reassignments.Asked(place(words.plain[0]), None))

    def _asked(self, asked: reassignments.Asked) -> list[str]:
        decision = reassignments.reassign(self.cluster, [asked])
        ((where, refusal),) = decision.answer
        if refusal is not None:
            assert decision.writes == ()
            return [f"{where} {refusal.error.name}"]
        return self.decided(lambda: decision)

    def _do_complete(self, _: Arguments) -> list[str]:
        return self.decided(lambda: moves.complete(self.cluster))

    def _do_restart(self, _: Arguments) -> list[str]:
        again = ClusterState(brokers=self.cluster.brokers)
        load(again, self.world.nodes())
        self.world.cluster = self.cluster = again
        return []

    def _do_stops(self, _: Arguments) -> list[str]:
        return [
            f"broker {broker} {stop.name}-{stop.partition} epoch={stop.leader_epoch}"
            for broker in sorted(self.cluster.brokers)
            for stop in stops_of(self.cluster, broker)
        ] or ["none"]

    def _do_confirm(self, words: Arguments) -> list[str]:
        broker = int(words.plain[0])
        sent = stops_of(self.cluster, broker)
        return self.decided(lambda: deletion.confirm(self.cluster, broker, sent))

    def _do_list(self, _: Arguments) -> list[str]:
        return [
            f"{one.where} replicas={_list(one.replicas)} adding={_list(one.adding)} "
            f"removing={_list(one.removing)}"
            for where in reassignments.moves_of(self.cluster)
            for one in [reassignments.listed(self.cluster, where)]
        ] or ["none"]

    def _do_configure(self, words: Arguments) -> list[str]:
        change = Resource(KIND_TOPIC, words.plain[0]), list(words.named.items())
        return self.decided(lambda: replace_configs(self.cluster, [change]))

    def _do_propose(self, words: Arguments) -> list[str]:
        leader, where = int(words.plain[0]), place(words.plain[1])
        proposal = isr.Proposal(
            where,
            OTHER_ID if words.flag("other-id") else NO_ID,
            words.number("epoch"),
            tuple(words.brokers("isr")),
            words.number("version"),
            tuple(numbers(words.named.get("epochs", ""))),
            words.flag("handled"),
        )
        decision = isr.alter_isr(
            self.cluster, leader, [proposal], knows_configs=not words.flag("old-configs")
        )
        debts, placed = self.debts(), self.placements()
        self.world.do(decision)
        (outcome,) = decision.answer
        lines = [f"{where} {outcome.error.name}"]
        if outcome.state is not None:
            lines.append(f"{where} {shown(outcome.state)} version={outcome.isr_version}")
            assert outcome.state == _unsigned(self.cluster.states[where], outcome.state)
        lines += self.moved(placed)
        return [*lines, *(f"handled: {line}" for line in debts if line not in self.debts())]


def _unsigned(state: PartitionState, like: PartitionState) -> PartitionState:
    """A state with the controller epoch of another, which an answer does not carry."""
    return msgspec.structs.replace(state, controller_epoch=like.controller_epoch)


def play(file: Path) -> str | None:
    """Run a scenario; what differs, or None."""
    steps = parse(file.read_text(encoding="utf-8"))
    assert steps, "a scenario without steps"
    stage = Stage()
    for step in steps:
        wrong = difference(file, step, stage.run(step.words))
        if wrong is not None:
            return wrong
    return None
