"""A Hypothesis model of the append of one plain batch, the same for the flat and the general path.

Random Produce requests with one batch each go to two hosted partitions: to one by the fast path
(what it leaves alone goes to the handler, as the router does it), to the other by the handler. A
model written from the rules says what must come of each. All three agree on responses, offsets,
files, leader epochs, producers and index entries; a refused batch leaves no trace. A disk that
fills in the middle of a write refuses on both paths alike, and what comes after it fits again. A
request may have a count, a resize epoch and a partition epoch in tags (KIP-253); the partition was
never resized.

Topics that want batches in another form (compacted, another codec) have no model here: the two
paths agree. Not covered: acks=all while followers lag (it waits on a loop: `tests/broker`) and
requests of several batches (the general path alone has them).
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.append_paths import COUNT, VERSION, Hosted
from tidelog.broker.partitions.resuming_producers import GIVEN_UP_MS
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.topic import CREATE_TIME, LOG_APPEND_TIME, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages
from tidelog.records.batch import HEADER_SIZE, read_header, seal_batch
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.storage.log.producers import KnownBatch

LONGEST_SEQUENCE = 2**31 - 1
REMEMBERED = 5
AFTER_MS, BEFORE_MS = 1000, 5000
OFFSET_ENTRY, TIME_ENTRY = 8, 12
ALONE, SHRUNK, FULL = ((1,), (1,)), ((1,), (1, 2)), ((1, 2), (1, 2))
"""ISR and replicas: the only replica; one of two in sync; both in sync."""

OWN = Named(COUNT, 0, 0)
"""What an aware producer of the partition sends."""

FOLDERS = ("flat path", "long path")

# -- what is drawn


@dataclass(frozen=True)
class Batch:
    """One Produce request with one batch; what depends on the log is resolved when it is sent."""

    count: int = 1
    size: int = 10
    room: str = ""
    """What its size just fills, or exceeds by a byte (an odd ``size``)."""
    producer: int = -1
    epoch: int = 0
    """Added to the epoch of the producer."""
    sequence: str = "next"
    back: int = 0
    """Which of the remembered batches is sent again, from the last one."""
    wait_ms: int = 0
    age_ms: int = 0
    step_ms: int = 0
    leader_epoch: int = -1
    """As a client may send it: the leader writes its own."""
    fault: str = ""
    acks: int = 1
    named: Named = NOT_NAMED


@dataclass(frozen=True)
class Role:
    """A LeaderAndIsr: lead or follow, in the same or the next leader epoch, with these replicas."""

    leads: bool = True
    newer: bool = False
    layout: tuple[tuple[int, ...], tuple[int, ...]] = ALONE


@dataclass(frozen=True)
class Sync:
    """The log is synced, as a thread does it."""


@dataclass(frozen=True)
class Full:
    """The disk has room for so many more bytes; None: as many as come."""

    room: int | None = None


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """The usual value four times out of five."""
    return st.sampled_from((usual,) * 4 * len(rare) + rare)


BATCHES = st.builds(
    Batch,
    count=st.integers(1, 4),
    size=st.sampled_from((10, 0, 1, 60, 151)),
    room=mostly("", "segment left", "segment", "message"),
    producer=st.sampled_from((-1, 7, 7, 7, 8)),
    epoch=mostly(0, -1, 1),
    sequence=st.sampled_from(
        (*["next"] * 8, *["again"] * 4, "other count", "ahead", "zero", "near the end")
    ),
    back=st.integers(0, REMEMBERED),
    wait_ms=mostly(0, 1, 700),
    age_ms=st.sampled_from((0, 3, -3, 40, -AFTER_MS, BEFORE_MS)),
    step_ms=st.sampled_from((0, 2, -2)),
    leader_epoch=st.sampled_from((-1, 0, 5)),
    fault=st.sampled_from(
        (*[""] * 70, "bit", "cut", "count", "base offset", "no sequence", "too new", "too old")
    ),
    acks=st.sampled_from((1, -1)),
    named=st.sampled_from(
        (
            *([NOT_NAMED] * 8),
            *([OWN] * 8),
            *(Named(7, 0, 0), Named(COUNT, 1, 0), Named(COUNT, 0, 1), Named(COUNT, -1, 0)),
            *(Named(-1, 0, 0), Named(COUNT, 0), Named(-(2**31), 2**31 - 1, -2)),
        )
    ),
)
ROLES = st.builds(
    Role, mostly(True, False), st.booleans(), st.sampled_from((ALONE, ALONE, SHRUNK, FULL))
)
DISKS = st.builds(Full, st.sampled_from((0, 1, 40, 100, None, None)))
STEPS = st.lists(
    st.one_of(*[BATCHES] * 12, ROLES, ROLES, st.builds(Sync), DISKS), min_size=12, max_size=30
)
OTHER_FORMS = st.builds(
    TopicConfigs,
    cleanup_policy=st.sampled_from((frozenset({"compact"}), frozenset({"delete"}))),
    compression_type=st.sampled_from(("producer", "gzip", "uncompressed")),
    segment_bytes=st.sampled_from((600, 6000)),
    message_timestamp_after_max_ms=st.just(AFTER_MS),
    message_timestamp_before_max_ms=st.just(BEFORE_MS),
    message_timestamp_type=mostly(CREATE_TIME, LOG_APPEND_TIME),
)
CONFIGS = st.builds(
    TopicConfigs,
    segment_bytes=st.sampled_from((600, 1000)),
    segment_ms=st.sampled_from((604_800_000, 1000)),
    segment_index_bytes=st.sampled_from((10_485_760, 48)),
    index_interval_bytes=st.sampled_from((1, 150)),
    max_message_bytes=st.sampled_from((1_048_588, 500)),
    min_insync_replicas=st.sampled_from((1, 2)),
    message_timestamp_after_max_ms=st.just(AFTER_MS),
    message_timestamp_before_max_ms=st.just(BEFORE_MS),
    message_timestamp_type=mostly(CREATE_TIME, LOG_APPEND_TIME),
)

# -- the model


@dataclass
class Segment:
    """What a segment's files must hold, and what the next append needs to know of it."""

    base: int
    data: bytearray = field(default_factory=bytearray)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    newest: tuple[int, int] = (-1, 0)
    first_ms: int = -1
    since_entry: int = 0

    def must_roll(self, size: int, newest_ms: int, configs: TopicConfigs) -> bool:
        if not self.data:
            return False
        most = configs.segment_index_bytes
        return (
            len(self.data) + size > configs.segment_bytes
            or newest_ms - self.first_ms > configs.segment_ms
            or len(self.offsets) >= most // OFFSET_ENTRY
            or len(self.times) >= most // TIME_ENTRY - 1
        )

    def append(self, batch: bytes, last: int, newest_ms: int, interval: int) -> None:
        position = len(self.data)
        self.data += batch
        if newest_ms > self.newest[0]:
            self.newest = newest_ms, last
        if not position:
            self.first_ms = newest_ms
        if self.since_entry <= interval:
            self.since_entry += len(batch)
            return
        self.offsets.append((last - self.base, position))
        self.add_time()
        self.since_entry = len(batch)

    def add_time(self) -> None:
        timestamp, offset = self.newest
        if timestamp > (self.times[-1][0] if self.times else -1):
            self.times.append((timestamp, offset - self.base))


@dataclass(frozen=True)
class Done:
    """What must come of a batch: an error, or offset and time (-1: the client's own)."""

    error: ErrorCode = ErrorCode.NONE
    first: int = -1
    append_ms: int = -1


class Model:
    """One partition by the rules of the append, in the order in which they are checked."""

    def __init__(self, configs: TopicConfigs) -> None:
        self.configs = configs
        self.segments = [Segment(0)]
        self.end = 0
        self.role = Role(leads=False)
        self.leader_epoch = -1
        self.epochs: list[tuple[int, int]] = []
        self.producers: OrderedDict[int, tuple[int, list[KnownBatch]]] = OrderedDict()
        self.since = -1
        self.notes: dict[tuple[int, int, int], tuple[int, int]] = {}
        """The lowest refused sequence of unknown producers, and when it was noted."""
        self.room: int | None = None

    def become(self, role: Role, leader_epoch: int) -> None:
        if role.leads and not self.role.leads:
            self.since = leader_epoch
        self.role, self.leader_epoch = role, leader_epoch
        if role.leads and leader_epoch > (self.epochs[-1][0] if self.epochs else -1):
            self.epochs = [each for each in self.epochs if each[1] < self.end]
            self.epochs.append((leader_epoch, self.end))

    def append(self, batch: bytes, acks: int, now_ms: int, named: Named) -> Done:
        if not self.role.leads:
            return Done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        done = self._append(batch, acks, now_ms, named)
        resumed, sequence = self._resumed(batch)
        if done.error is not ErrorCode.NONE and resumed in self.notes:
            lowest, noted_ms = self.notes.pop(resumed)
            if done.error.retriable:
                self.notes[resumed] = sequence if is_up_to(sequence, lowest) else lowest, noted_ms
        return done

    def _append(self, batch: bytes, acks: int, now_ms: int, named: Named) -> Done:
        isr, replicas = self.role.layout
        if acks == -1 and len(isr) < min(self.configs.min_insync_replicas, len(replicas)):
            return Done(ErrorCode.NOT_ENOUGH_REPLICAS)
        if named not in (NOT_NAMED, OWN):
            if -1 in named:
                return Done(ErrorCode.INVALID_REQUEST)
            if named[1:] != OWN[1:]:
                return Done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if not isinstance(self._judge(batch), KnownBatch):
                return Done(ErrorCode.POLICY_VIOLATION)
        error = self._check(batch, now_ms)
        if error is not ErrorCode.NONE:
            return Done(error)
        stamped = self.configs.message_timestamp_type is LOG_APPEND_TIME
        known = self._judge(batch)
        if isinstance(known, ErrorCode):
            return Done(known)
        if known is not None:
            return Done(ErrorCode.NONE, known.first_offset, known.appended_ms if stamped else -1)
        resumes = read_header(batch).producer_id not in self.producers
        if resumes and not self._may_begin(batch, now_ms):
            return Done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        first = self.end
        if not self._write(batch, now_ms, stamped=stamped):
            return Done(ErrorCode.KAFKA_STORAGE_ERROR)
        if resumes and read_header(batch).base_sequence > 0:
            del self.notes[self._resumed(batch)[0]]
        return Done(ErrorCode.NONE, first, now_ms if stamped else -1)

    def _check(self, batch: bytes, now_ms: int) -> ErrorCode:
        header, configs = read_header(batch), self.configs
        if header.size != len(batch):
            return ErrorCode.CORRUPT_MESSAGE
        if header.base_offset:
            return ErrorCode.INVALID_RECORD
        if len(batch) > configs.max_message_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        if read_header(seal_batch(header, batch[HEADER_SIZE:])).crc != header.crc:
            return ErrorCode.CORRUPT_MESSAGE
        if header.record_count != header.last_offset_delta + 1:
            return ErrorCode.INVALID_RECORD
        if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
            return ErrorCode.INVALID_RECORD
        times = header.base_timestamp, header.max_timestamp
        if configs.message_timestamp_type is CREATE_TIME and not all(
            now_ms - BEFORE_MS <= each <= now_ms + AFTER_MS for each in times
        ):
            return ErrorCode.INVALID_TIMESTAMP
        if len(batch) > configs.segment_bytes:
            return ErrorCode.RECORD_LIST_TOO_LARGE
        return ErrorCode.NONE

    def _judge(self, batch: bytes) -> KnownBatch | ErrorCode | None:
        header = read_header(batch)
        if header.producer_id not in self.producers:
            return None
        epoch, batches = self.producers[header.producer_id]
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        expected = 0 if header.producer_epoch > epoch else following(batches)
        if header.base_sequence == expected:
            return None
        if header.producer_epoch == epoch:
            for known in batches:
                if known[:2] == (header.base_sequence, header.last_sequence):
                    return known
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def _resumed(self, batch: bytes) -> tuple[tuple[int, int, int], int]:
        header = read_header(batch)
        return (self.since, header.producer_id, header.producer_epoch), header.base_sequence

    def _may_begin(self, batch: bytes, now_ms: int) -> bool:
        resumed, sequence = self._resumed(batch)
        if resumed[1] < 0 or sequence == 0:
            return True
        lowest, noted_ms = self.notes.get(resumed, (-1, 0))
        if lowest >= 0 and is_up_to(sequence, lowest):
            return True
        if lowest < 0 or now_ms - noted_ms >= GIVEN_UP_MS:
            self.notes[resumed] = sequence, now_ms
        return False

    def _write(self, batch: bytes, now_ms: int, *, stamped: bool) -> bool:
        header = read_header(batch)
        first, last = self.end, self.end + header.last_offset_delta
        kept = header._replace(base_offset=first, leader_epoch=self.leader_epoch)
        if stamped:
            kept = kept._replace(attributes=header.attributes | 8, max_timestamp=now_ms)
        written = seal_batch(kept, batch[HEADER_SIZE:])
        active, configs = self.segments[-1], self.configs
        if active.must_roll(len(batch), kept.max_timestamp, configs):
            active.add_time()
            active = Segment(first, newest=(-1, first))
            self.segments.append(active)
        if self.room is not None and len(written) > self.room:
            return False
        active.append(written, last, kept.max_timestamp, configs.index_interval_bytes)
        self.end = last + 1
        if header.producer_id >= 0:
            epoch, batches = self.producers.pop(header.producer_id, (-1, []))
            known = KnownBatch(header.base_sequence, header.last_sequence, first, last, now_ms)
            batches = [*(batches if epoch == header.producer_epoch else []), known]
            self.producers[header.producer_id] = header.producer_epoch, batches[-REMEMBERED:]
        return True


def is_up_to(sequence: int, other: int) -> bool:
    """Whether a sequence is another one or before it: half of all are before."""
    return (other - sequence) % (LONGEST_SEQUENCE + 1) <= LONGEST_SEQUENCE // 2


def following(batches: list[KnownBatch]) -> int:
    """The sequence that follows the last batch: 0 follows 2^31 - 1."""
    return (batches[-1].last_sequence + 1) % (LONGEST_SEQUENCE + 1) if batches else 0


# -- what is sent


def built(drawn: Batch, model: Model, now_ms: int) -> bytes:
    """The bytes of a batch that was drawn, as the model's partition stands."""
    count, producer = drawn.count, Producer()
    if drawn.producer >= 0:
        epoch, batches = model.producers.get(drawn.producer, (0, []))
        sequence = following(batches)
        if drawn.sequence in ("again", "other count") and batches:
            known = batches[-1 - drawn.back % len(batches)]
            sequence = known.first_sequence
            count = (known.last_sequence - sequence) % (LONGEST_SEQUENCE + 1) + 1
            count += drawn.sequence == "other count"
        ahead = (sequence + 1) & LONGEST_SEQUENCE
        others = {"ahead": ahead, "zero": 0, "near the end": LONGEST_SEQUENCE - 2}
        sequence = others.get(drawn.sequence, sequence)
        if drawn.fault == "no sequence":
            sequence = -1
        producer = Producer(drawn.producer, epoch + drawn.epoch, sequence)
    ages = {"too new": -AFTER_MS - 1, "too old": BEFORE_MS + 1}
    age_ms = ages.get(drawn.fault, drawn.age_ms)
    times = [now_ms - age_ms + drawn.step_ms * at for at in range(count)]
    rooms = {
        "segment left": model.configs.segment_bytes - len(model.segments[-1].data),
        "segment": model.configs.segment_bytes,
        "message": model.configs.max_message_bytes,
    }

    def with_value(size: int) -> bytes:
        values = [bytes(size), *[b"v"] * (count - 1)]
        records = [NewRecord(time, None, value) for time, value in zip(times, values, strict=True)]
        return build_batch(records, producer=producer)

    size = drawn.size
    batch = with_value(size)
    wanted = rooms.get(drawn.room, 0) + drawn.size % 2
    if len(batch) < wanted <= model.configs.segment_bytes + 1:
        for _ in range(3):  # the lengths before a value change with it
            size += wanted - len(batch)
            batch = with_value(size)
    header = read_header(batch)._replace(leader_epoch=drawn.leader_epoch)
    if drawn.fault == "count":
        header = header._replace(record_count=header.record_count + 1)
    if drawn.fault == "base offset":
        header = header._replace(base_offset=1)
    batch = seal_batch(header, batch[HEADER_SIZE:])
    if drawn.fault == "bit":
        return batch[:-1] + bytes([batch[-1] ^ 1])
    return batch[:-1] if drawn.fault == "cut" else batch


# -- the two paths


def produce(batch: bytes, acks: int, named: Named) -> Any:
    """A Produce request with this batch for the partition."""
    kind, (count, epoch, partition_epoch) = messages.ProduceRequest, named
    part = kind.PartitionProduceData(0, memoryview(batch), partition_epoch=partition_epoch)
    data = kind.TopicProduceData(
        name="t", undeleted_partition_count=count, resize_epoch=epoch, partition_data=[part]
    )
    return kind(acks=acks, timeout_ms=1000, topic_data=[data])


def responses_of(request: Any, flat: Hosted, general: Hosted) -> tuple[bytes, bytes]:
    """The responses of both paths; a refusal names the log's path, which is replaced."""
    found = general.general(request)
    return flat.flat(request), found.replace(FOLDERS[1].encode(), FOLDERS[0].encode())


def outcome(response: bytes) -> Done:
    """What a response says of its partition."""
    _, read = codec.decode_response(ApiKey.PRODUCE, VERSION, memoryview(response)[4:])
    part = read.responses[0].partition_responses[0]
    return Done(ErrorCode(part.error_code), part.base_offset, part.log_append_time_ms)


def check_against_model(state: dict[str, Any], model: Model) -> None:
    """The log in memory and on disk is what the model says."""
    assert state["offsets"][:2] == (0, model.end)
    assert state["epochs"] == (model.epochs, model.leader_epoch)
    assert state["producers"] == dict(model.producers)
    assert state["idle"] == list(model.producers)
    assert [segment[0][0] for segment in state["segments"]] == [x.base for x in model.segments]
    for found, wanted in zip(state["segments"], model.segments, strict=True):
        assert found[1:3] == (wanted.offsets, wanted.times)
        assert state["files"].get(f"{wanted.base:020}.log", b"") == wanted.data
    if model.role.leads and model.role.layout == ALONE:
        assert state["offsets"][2] == model.end


def send(drawn: Batch, model: Model, flat: Hosted, general: Hosted) -> None:
    """One request to both partitions and to the model."""
    now_ms = flat.clock.now_ms = general.clock.now_ms = flat.clock.now_ms + drawn.wait_ms
    waits = model.role.layout == FULL and model.role.leads
    acks = 1 if waits else drawn.acks
    batch = built(drawn, model, now_ms)
    request = produce(batch, acks, drawn.named)
    end = model.end
    expected = model.append(batch, acks, now_ms, drawn.named)
    before = flat.state()
    responses = responses_of(request, flat, general)
    assert outcome(responses[0]) == expected
    assert responses[0] == responses[1]
    assert (flat.unaware, flat.refused) == (general.unaware, general.refused)
    full = expected.error is ErrorCode.KAFKA_STORAGE_ERROR  # a roll may have come before it
    if model.end == end and expected.error is not ErrorCode.NONE and not full:
        after = flat.state()
        assert {**after, "counted": None} == {**before, "counted": None}


SMALL = TopicConfigs(segment_bytes=600, message_timestamp_before_max_ms=BEFORE_MS)
SMALL = replace(SMALL, message_timestamp_after_max_ms=AFTER_MS)
TO_THE_BYTE = [
    *[Batch()] * 2,  # the second one computes how much room the segment has
    Batch(room="segment left", size=10),
    *[Batch()] * 2,
    Batch(room="segment left", size=1),
    Batch(room="segment", size=0),
    Batch(room="segment", size=1),
]
TO_THE_MS = [*[Batch()] * 2, Batch(age_ms=-1000), Batch(wait_ms=1, age_ms=-1000)]
REMEMBERED_ONES = [
    *[Batch(producer=7, sequence="near the end")] * 2,
    *[Batch(producer=7)] * REMEMBERED,
    *[Batch(producer=7, sequence="again", back=back) for back in range(REMEMBERED)],
    Batch(producer=7, sequence="zero", count=2),
]
RESUMED = [
    Batch(producer=7, sequence="near the end"),
    Full(0),
    Batch(producer=7, sequence="near the end"),
    Full(None),
    Batch(producer=7, sequence="zero", fault="bit"),
    Batch(producer=8, sequence="ahead"),
    Batch(producer=7, sequence="near the end"),
    Batch(producer=8, sequence="ahead"),
    Batch(producer=8),
]
"""Unknown producers go on: refused once, at the retry a full disk, then a damaged older batch."""
INDEXED = [Batch(wait_ms=1)] * 8
INDEXED_BY_LAST = [Batch(count=3, wait_ms=1)] * 8


@settings(max_examples=50)
@example(SMALL, TO_THE_BYTE)
@example(replace(SMALL, segment_ms=1000), TO_THE_MS)
@example(replace(SMALL, segment_bytes=6000), REMEMBERED_ONES)
@example(replace(SMALL, segment_bytes=6000), RESUMED)
@example(replace(SMALL, segment_index_bytes=48, index_interval_bytes=1), INDEXED)
@example(replace(SMALL, segment_bytes=6000, index_interval_bytes=2 * 78), INDEXED)
@example(replace(SMALL, segment_bytes=6000, index_interval_bytes=1), INDEXED_BY_LAST)
@example(replace(SMALL, segment_bytes=6000, message_timestamp_type=LOG_APPEND_TIME), INDEXED)
@given(CONFIGS, STEPS)
def test_both_paths_do_what_the_model_says(configs: TopicConfigs, steps: list[Any]) -> None:
    model, leader_epoch = Model(configs), 0
    with tempfile.TemporaryDirectory() as name:
        flat, general = (Hosted(Path(name) / each, configs) for each in FOLDERS)
        for step in (Role(), *steps):
            if isinstance(step, Batch):
                send(step, model, flat, general)
            elif isinstance(step, Role):
                leader_epoch += step.newer
                for each in (model, flat, general):
                    each.become(step, leader_epoch)
            elif isinstance(step, Full):
                model.room = flat.disk.room = general.disk.room = step.room
            else:
                for each in (flat, general):
                    each.partition.log.sync()
            found = flat.state()
            assert found == general.state()
            check_against_model(found, model)
        for each in (flat, general):
            assert each.directory.close() is not False


@settings(max_examples=25)
@given(OTHER_FORMS, STEPS)
def test_both_paths_agree_where_the_topic_wants_another_form(
    configs: TopicConfigs, steps: list[Any]
) -> None:
    model, leader_epoch = Model(configs), 0  # the model only says what is sent next
    with tempfile.TemporaryDirectory() as name:
        flat, general = (Hosted(Path(name) / each, configs) for each in FOLDERS)
        for step in (Role(), *steps):
            if isinstance(step, Batch):
                now_ms = flat.clock.now_ms + step.wait_ms
                flat.clock.now_ms = general.clock.now_ms = now_ms
                request = produce(built(step, model, now_ms), 1, step.named)
                first, second = responses_of(request, flat, general)
                assert first == second
            elif isinstance(step, Role):
                leader_epoch += step.newer
                for each in (flat, general):
                    each.become(step, leader_epoch)
            elif isinstance(step, Full):
                flat.disk.room = general.disk.room = step.room
            else:
                for each in (flat, general):
                    each.partition.log.sync()
            assert flat.state() == general.state()
        for each in (flat, general):
            assert each.directory.close() is not False
