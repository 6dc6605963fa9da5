"""The fast path of Fetch gives the bytes of the handler, or leaves a request alone.

Random Fetch requests, mostly plain ones, go to two brokers with the same partitions: to one by the
fast path (what it leaves alone goes to the handler, as the router does it), to the other by the
handler, which reads all partitions each time. The responses, sessions and counts are the same,
after appends, changes of role, moves of watermark and log start, and for clients with more or less
room.

Not covered: waits (they need a loop: `tests/broker`) and records outside of the page cache.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fetch_paths import Hosts
from tests.support.storage_logs import NOW_MS, batch
from tidelog.broker.fetching.client_sessions import EXPIRY_MS
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import codec, messages
from tidelog.records.batch import walk
from tidelog.records.control_records import ChangeKind
from tidelog.replication.resize_rules import Named
from tidelog.storage.log.fences import FenceEntry, Fences

KEYS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u" * 126, 0)]
UNKNOWN = [TopicPartition("t", 9), TopicPartition("other", 0), TopicPartition("x" * 127, 0)]
CONFIGS = TopicConfigs(segment_bytes=300_000)
LARGE = 40_000

Request = messages.FetchRequest


@dataclass(frozen=True)
class Append:
    at: int
    size: int
    count: int


@dataclass(frozen=True)
class Role:
    at: int
    leads: bool
    newer: bool
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """The watermark of a partition moves, and perhaps its log start."""

    at: int
    part: float
    start: bool


@dataclass(frozen=True)
class Offline:
    at: int


@dataclass(frozen=True)
class Resize:
    """A partition is in a resize epoch, with a fence of it somewhere in its log or nowhere; the
    metadata show an epoch of its topic."""

    at: int
    epoch: int
    sealed: bool
    fence: float | None
    shown: int


@dataclass(frozen=True)
class Again:
    """A topic is deleted and created again; perhaps the metadata do not show that yet."""

    at: int
    shown: bool


@dataclass(frozen=True)
class Room:
    """What the client, and all clients together, have room for, and the time that passes."""

    budget: int
    sends_files: bool
    wait_ms: int


@dataclass(frozen=True)
class Asked:
    """One partition of a request; what depends on the log is resolved when it is sent."""

    at: int
    unknown: bool
    place: float
    beyond: int
    epoch: int | None
    last_fetched: bool
    max_bytes: int
    partition_epoch: int = -1
    former: bool = False
    """Whether it names the former incarnation of the topic, in a version with ids."""


@dataclass(frozen=True)
class Fetch:
    asked: list[Asked]
    session: str
    version: int
    isolation: int
    least: int
    most: int
    forget: bool
    rack: str
    replica: int
    counts: tuple[int, int] = (-1, -1)
    """Count and resize epoch of each topic."""


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """The usual value nine times out of ten."""
    return st.sampled_from((usual,) * 9 * len(rare) + rare)


AT = st.integers(0, len(KEYS) - 1)
APPENDS = st.builds(Append, AT, st.sampled_from((1, 100, LARGE, LARGE)), st.integers(1, 3))
ROLES = st.builds(
    Role, AT, mostly(True, False), st.booleans(), st.sampled_from(((1,), (1,), (1, 2)))
)
MOVES = st.builds(Move, AT, st.sampled_from((0.0, 0.4, 0.9, 1.0)), mostly(False, True))
ROOMS = st.builds(
    Room, st.sampled_from((2**30, 2**30, 70_000, 0)), st.booleans(), mostly(1, EXPIRY_MS)
)
ASKED = st.builds(
    Asked,
    AT,
    mostly(False, True),
    st.sampled_from((0.0, 0.0, 0.3, 0.7, 1.0)),
    mostly(0, -1, 1, 5),
    mostly(0, None, -1, 1),
    mostly(False, True),
    st.sampled_from((1_048_576, 1_048_576, 100_000, 500, 0)),
    st.sampled_from((-1, 0, 0, 7, 2**31 - 1)),
    mostly(False, True),
)
FETCHES = st.builds(
    Fetch,
    st.lists(ASKED, max_size=4),
    st.sampled_from(
        (*["none"] * 6, "begin", *["next"] * 12, "wrong id", "wrong epoch", "unusable", "end")
    ),
    st.one_of(mostly(12, 11, 4), st.just(13), st.sampled_from((13, 14, 15, 16, 17))),
    st.sampled_from((0, 1)),
    mostly(1, 0, 5000),
    mostly(52_428_800, 90_000, 0),
    mostly(False, True),
    mostly("", "r"),
    mostly(-1, -2),
    st.sampled_from(((-1, -1), (8, 3), (8, 3), (8, 3), (4, 2), (-1, 3), (-(2**31), 2**31 - 1))),
)
RESIZES = st.builds(
    Resize,
    AT,
    st.sampled_from((2, 3, 3)),
    mostly(False, True),
    st.sampled_from((None, 0.0, 0.4, 0.8, 1.0)),
    st.sampled_from((0, 2, 3)),
)
AGAIN = st.builds(Again, AT, st.booleans())
RARE = (ROLES, MOVES, MOVES, ROOMS, RESIZES, RESIZES, st.builds(Offline, AT), AGAIN)
STEPS = st.lists(
    st.one_of(*[FETCHES] * 10, *[APPENDS] * 5, *RARE),
    min_size=20,
    max_size=60,
)


class Sides:
    """The two brokers, and the client's session."""

    def __init__(self, folder: Path) -> None:
        self.flat = Hosts(folder / "flat", KEYS, CONFIGS)
        self.general = Hosts(folder / "general", KEYS, CONFIGS)
        self.both = (self.flat, self.general)
        self.epochs = dict.fromkeys(KEYS, 0)
        self.session = (0, 0)
        for at in range(len(KEYS)):
            self.take(Role(at, leads=True, newer=True, replicas=(1,)))
            self.take(Append(at, LARGE, 5))

    def take(self, step: Any) -> None:
        if isinstance(step, Fetch):
            self.fetch(step)
            return
        if isinstance(step, Role) and step.newer:
            self.epochs[KEYS[step.at]] += 1
        for hosts in self.both:
            self.change(hosts, step)

    def change(self, hosts: Hosts, step: Any) -> None:
        if isinstance(step, Room):
            hosts.client.budget, hosts.client.sends_files = step.budget, step.sends_files
            hosts.clock.now_ms += step.wait_ms
            return
        key = KEYS[step.at]
        partition = hosts.partitions[key]
        log = partition.log
        if isinstance(step, Append):
            for _ in range(step.count):
                partition.append(batch(2, size=step.size), NOW_MS)
        elif isinstance(step, Role):
            hosts.become(key, step.leads, self.epochs[key], step.replicas)
        elif isinstance(step, Resize):
            state = {"undeleted_count": 8, "resize_epoch": step.epoch, "partition_epoch": 0}
            partition.state = replace(partition.state, **state, sealed=step.sealed)
            if step.fence is not None:
                log.fences = fences_at(place_in(log, step.fence), step.epoch)
            hosts.show(key.topic, step.shown)
        elif isinstance(step, Again):
            hosts.create_again(key.topic, shown=step.shown)
        elif isinstance(step, Offline):
            partition.go_offline("its disk failed")
        else:
            log.high_watermark = place_in(log, step.part)
            if step.start:
                log.advance_start(log.high_watermark)

    def request(self, step: Fetch) -> Any:
        topics: dict[tuple[str, bool], list[Any]] = {}
        for asked in step.asked:
            key = (UNKNOWN if asked.unknown else KEYS)[asked.at]
            log = self.flat.partitions[KEYS[asked.at]].log
            epoch = (
                -1 if asked.epoch is None else max(-1, self.epochs[KEYS[asked.at]] + asked.epoch)
            )
            part = Request.FetchPartition(
                partition=key.partition,
                fetch_offset=place_in(log, asked.place) + asked.beyond,
                current_leader_epoch=epoch,
                last_fetched_epoch=self.epochs[KEYS[asked.at]] if asked.last_fetched else -1,
                partition_max_bytes=asked.max_bytes,
                partition_epoch=asked.partition_epoch,
            )
            topics.setdefault((key.topic, asked.former), []).append(part)
        session_id, epoch = self.session
        sessions = {
            "none": (0, -1),
            "begin": (session_id, 0),
            "next": (session_id, epoch),
            "wrong id": (session_id + 1, epoch),
            "wrong epoch": (session_id, epoch + 1),
            "unusable": (session_id, -2),
            "end": (session_id, -1),
        }
        asked_session = sessions[step.session] if step.version >= 7 else (0, -1)
        tags = dict(zip(("undeleted_partition_count", "resize_epoch"), step.counts, strict=True))
        id_of = self.flat.id_of
        forgotten = Request.ForgottenTopic(topic="t", topic_id=id_of("t"), partitions=[1])
        forget = [forgotten] if step.forget else []
        return Request(
            replica_id=step.replica,
            max_wait_ms=0,
            min_bytes=step.least,
            max_bytes=step.most,
            isolation_level=step.isolation,
            session_id=asked_session[0],
            session_epoch=asked_session[1],
            topics=[
                Request.FetchTopic(name, id_of(name, former=former), x, **tags)
                for (name, former), x in topics.items()
            ],
            forgotten_topics_data=forget if step.version >= 7 else [],
            rack_id=step.rack if step.version >= 11 else "",
        )

    def fetch(self, step: Fetch) -> None:
        request = self.request(step)
        flat = self.flat.flat(request, step.version)
        self.general.look_again()
        general = self.general.general(request, step.version)
        assert flat == general
        assert self.flat.state() == self.general.state()
        assert self.flat.asked() == self.general.asked()
        response = codec.decode_response(ApiKey.FETCH, step.version, memoryview(flat)[4:])[1]
        self.response: Any = response
        if step.session in ("begin", "end") and step.version >= 7:
            self.session = (response.session_id, 1)
        elif step.session == "next" and response.error_code == ErrorCode.NONE:
            self.session = (self.session[0], request.session_epoch + 1)


def fences_at(offset: int, epoch: int) -> Fences:
    return Fences((FenceEntry(epoch, 8, ChangeKind.FENCE, offset, offset),))


def place_in(log: Any, part: float) -> int:
    return int(log.start_offset + part * (log.end_offset - log.start_offset))


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_bytes_of_the_handler(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder))
        for step in steps:
            sides.take(step)


def plain(at: int = 0, place: float = 0.0, **changes: Any) -> Fetch:
    asked = Asked(at, False, place, 0, 0, False, 1_048_576)
    fields = {
        "asked": [asked],
        "session": "none",
        "version": 12,
        "isolation": 1,
        "least": 1,
        "most": 52_428_800,
        "forget": False,
        "rack": "",
        "replica": -1,
    }
    return Fetch(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("sends_files", [False, True])
@pytest.mark.parametrize("version", range(12, 18))
def test_what_stock_consumers_send_has_the_fast_path(
    tmp_path: Path, sends_files: bool, version: int
) -> None:
    """librdkafka names its partitions each time; Java has a session, and names what changed."""
    sides = Sides(tmp_path)
    sides.take(Room(2**30, sends_files, 0))
    sent = partial(plain, version=version)
    librdkafka = [sent(), sent(2), sent(asked=sent().asked + sent(1, 0.3).asked)]
    java = [
        sent(session="next", isolation=0),
        sent(1, 0.3, session="next", isolation=0),
        sent(asked=[], session="next", isolation=0),
    ]
    for step in librdkafka:
        sides.take(step)
    sides.take(sent(asked=[x for at in (0, 1) for x in sent(at).asked], session="begin"))
    for step in java:
        sides.take(step)
    assert sides.flat.fast == 6


@pytest.mark.parametrize("version", [13, 17])
def test_an_id_is_never_served_with_the_records_of_the_next_incarnation(
    tmp_path: Path, version: int
) -> None:
    """Without a session, and in one that began before the topic was deleted and created again."""
    sides = Sides(tmp_path)
    sent = partial(plain, version=version)

    def codes() -> list[int]:
        response = sides.response
        return [p.error_code for t in response.responses for p in t.partitions]

    sides.take(sent(session="begin"))
    sides.take(sent())
    sides.take(sent(session="next"))
    assert (codes(), sides.flat.fast) == ([ErrorCode.NONE], 2)
    for shown in (False, True):
        sides.take(Again(0, shown=False) if not shown else Again(0, shown=True))
        stale = replace(sent().asked[0], former=True)
        for step in (sent(asked=[stale]), sent(asked=[], session="next")):
            sides.take(step)
            assert codes() == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert sides.flat.fast == 2
    sides.take(sent())
    assert (codes(), sides.flat.fast) == ([ErrorCode.NONE], 3)
    sides.take(sent(session="next"))
    assert sorted(codes()) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    forget = sent(asked=[], session="next", version=12)
    sides.take(forget)
    assert sides.response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_numbers_of_an_aware_consumer_have_the_fast_path(tmp_path: Path) -> None:
    """All three, of one or more partitions, in a session or not: and each as it was sent last."""
    sides = Sides(tmp_path)
    first, second = (Asked(at, False, 0.0, 0, 0, False, 1_048_576, 20 + at) for at in (0, 1))
    sides.take(plain(asked=[first], counts=(8, 3)))
    sides.take(plain(asked=[first, second], counts=(8, 3)))
    sides.take(plain(asked=[first, second], counts=(4, 1), session="begin"))
    assert [named for *_, named in sides.flat.asked()] == [Named(4, 1, 20), Named(4, 1, 21)]
    sides.take(plain(asked=[second], counts=(8, 3), session="next"))
    assert sides.flat.fast == 3
    named = {named for *_, named in sides.flat.asked()}
    assert named == {Named(4, 1, 20), Named(8, 3, 21)}
    sides.take(plain(asked=[first], session="next", counts=(-1, -1)))
    assert sides.flat.fast == 3, "some of the three and not all: the handler refuses that"


def test_a_fence_limits_both_paths_and_a_shown_epoch_ends_the_fast_one(tmp_path: Path) -> None:
    sides = Sides(tmp_path)
    own, older = (
        plain(asked=[replace(plain().asked[0], partition_epoch=0)], counts=counts)
        for counts in ((8, 3), (4, 2))
    )
    beyond = replace(older, asked=[replace(older.asked[0], place=0.4)])
    log = sides.flat.partitions[KEYS[0]].log
    sides.take(Room(2**30, sends_files=False, wait_ms=0))
    sides.take(Resize(0, 3, sealed=False, fence=0.4, shown=2))
    limit = place_in(log, 0.4)
    assert 0 < limit < log.high_watermark
    assert offsets_of(sides.both[0], own, sides)[-1] > limit, "as far as the segment goes"
    assert offsets_of(sides.both[0], older, sides)[-1] + 1 == limit
    assert sides.flat.fast == 2
    sides.take(beyond)
    assert sides.flat.fast == 2, "at the fence it waits, in the handler"
    sides.take(Resize(0, 3, sealed=False, fence=None, shown=3))
    sides.take(older)
    assert sides.flat.fast == 2, "the handler refuses it"


def offsets_of(hosts: Hosts, step: Fetch, sides: Sides) -> list[int]:
    """The offsets of the records that a step gets, on both paths."""
    sides.take(step)
    answer = hosts.general(sides.request(step), step.version)
    response = codec.decode_response(ApiKey.FETCH, step.version, memoryview(answer)[4:])[1]
    sides.general.general(sides.request(step), step.version)
    return [header.last_offset for _, header in walk(response.responses[0].partitions[0].records)]


@pytest.mark.parametrize(
    "step",
    [
        plain(version=11),
        plain(place=1.0),
        plain(rack="r"),
        plain(replica=-2),
        plain(least=2),
        plain(session="begin"),
        plain(session="next"),
        plain(session="end", asked=[]),
        plain(asked=[Asked(0, True, 0.0, 0, None, False, 1000)]),
        plain(asked=[Asked(0, False, 0.0, -1, None, False, 1000)]),
        plain(asked=[Asked(0, False, 1.0, 1, None, False, 1000)]),
        plain(asked=[Asked(0, False, 0.0, 0, 1, False, 1000)]),
        plain(asked=[Asked(0, False, 0.0, 0, 0, True, 1000)]),
        plain(asked=[]),
    ],
)
def test_what_is_left_to_the_handler(tmp_path: Path, step: Fetch) -> None:
    sides = Sides(tmp_path)
    sides.take(step)
    assert sides.flat.fast == 0


@pytest.mark.parametrize("version", [12, 13, 17])
def test_bytes_that_are_no_request_are_left_to_the_decoder(tmp_path: Path, version: int) -> None:
    from tidelog.broker.fetching import fetch_fast_path

    sides = Sides(tmp_path)
    request = sides.request(plain(asked=plain().asked + plain(1).asked))
    frame = b"".join(codec.encode_request(1, version, 7, "c", request))[4:]
    at = codec.decode_request_header(memoryview(frame)).body
    client: Any = sides.flat.client
    before = sides.flat.state()

    def answered(changed: bytes) -> Any:
        return fetch_fast_path.answer(
            sides.flat.broker, memoryview(changed), at, version, 7, client
        )

    for end in range(at, len(frame)):
        assert answered(frame[:end]) is None
    assert answered(frame + b"\0") is None
    assert sides.flat.state() == before
    for position in range(at, len(frame)):
        for value in (0, 1, 127, 128, 255):
            answered(frame[:position] + bytes([value]) + frame[position + 1 :])
    assert answered(frame) is not None
