"""The state machine of a producer's transactions: each state, each event, and random histories."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field
from itertools import product

import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.client.errors import (
    AbortTransaction,
    ClientError,
    ConnectionLost,
    GaveUp,
    ProducerEnded,
    ProducerFenced,
    Refused,
    VersionUnsupported,
    WrongState,
)
from tidelog.client.producing.transaction import (
    TABLE,
    Phase,
    ProducerTransaction,
    TxnEnd,
    TxnEvent,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

LETTERS = dict(zip("nsrofgcapx", Phase, strict=True)) | {"-": None}
"""new, starting, ready, open, failed, flushing, committing, aborting, prepared, closed."""

EXPECTED = """
           n s r o f g c a p x
INIT       s s - - - - - - - -
STARTED    n r r o f g c a p x
BEGIN      - - o - - - - - - -
WRITE      - - - o - - - - - -
COMMIT     - - - g - g c - c -
PREPARE    - - - g - g - - p -
ABORT      - - - a a a - a a -
FLUSHED    - - - - - c c - - -
SET_ASIDE  - - - - - p - - p -
ENDED      n s r o f g r r p x
FAIL       n s r f f f f a p x
CLOSE      x x x x x x x x x x
"""

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = [TopicPartition("t", index) for index in range(4)]
LOST = Refused(ErrorCode.MESSAGE_TOO_LARGE, "t-0")
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def expected() -> dict[tuple[Phase, TxnEvent], Phase | None]:
    found = {}
    for line in EXPECTED.strip().splitlines()[1:]:
        name, *letters = line.split()
        for phase, letter in zip(Phase, letters, strict=True):
            found[phase, TxnEvent[name]] = LETTERS[letter]
    return found


def made(*events: TxnEvent) -> ProducerTransaction:
    one = ProducerTransaction("id", 60_000)
    for event in events:
        one.step(event)
    return one


def opened() -> ProducerTransaction:
    return made(TxnEvent.INIT, TxnEvent.STARTED, TxnEvent.BEGIN)


@pytest.mark.parametrize("event", TxnEvent, ids=lambda event: event.name)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_each_cell(phase: Phase, event: TxnEvent) -> None:
    after = expected()[phase, event]
    assert TABLE[phase, event] is after
    one = ProducerTransaction("id", 60_000)
    one.phase, one.problem = phase, ClientError("why")
    if after is not None:
        one.step(event)
        assert one.phase is after
        return
    with pytest.raises(ClientError) as refusal:
        one.step(event)
    assert one.phase is phase, "a call that is refused changes nothing"
    kinds = {Phase.FAILED: AbortTransaction, Phase.CLOSED: ClientError}
    assert type(refusal.value) is kinds.get(phase, WrongState)
    assert "\n" not in str(refusal.value)


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(product(Phase, TxnEvent)) == set(expected())


def test_a_partition_is_added_before_its_first_batch() -> None:
    one = opened()
    assert one.is_empty
    assert not one.may_send(P)
    assert not one.may_send(Q)
    assert one.must_add
    assert one.to_add(ALL) == (P, Q), "all that wait are in one request"
    assert not one.is_empty, "the coordinator may have them, whatever it answers"
    assert not one.may_send(P)
    one.added((P,))
    assert one.may_send(P)
    assert not one.may_send(Q)
    assert one.to_add(ALL) == (Q,)
    one.added((Q, P))
    assert not one.must_add


def test_a_partition_that_has_no_batch_any_more_is_not_added() -> None:
    one = opened()
    one.may_send(P)
    one.may_send(Q)
    assert one.to_add([Q]) == (Q,), "the topic was resized, and P may be removed"
    one.added((Q,))
    assert not one.must_add


def test_nothing_is_added_to_a_transaction_that_is_given_up() -> None:
    one = opened()
    one.may_send(P)
    one.failed(LOST)
    assert one.gives_up
    assert not one.may_send(Q)
    assert one.to_add(ALL) == ()


def test_an_answer_that_comes_late_adds_nothing_to_the_next_transaction() -> None:
    one = opened()
    one.may_send(P)
    late = one.to_add(ALL)
    one.step(TxnEvent.ABORT)
    one.ended()
    one.step(TxnEvent.BEGIN)
    one.added(late)
    assert not one.may_send(P)


@pytest.mark.parametrize(
    ("events", "is_open", "wanted"),
    [
        (
            [TxnEvent.COMMIT, TxnEvent.FLUSHED],
            False,
            TxnEnd(True, False, False),
        ),
        (
            [TxnEvent.COMMIT, TxnEvent.FLUSHED],
            True,
            TxnEnd(True, True, False),
        ),
        ([TxnEvent.ABORT], False, TxnEnd(False, False, False)),
        ([TxnEvent.ABORT], True, TxnEnd(False, True, True)),
        (
            [TxnEvent.COMMIT, TxnEvent.ABORT],
            True,
            TxnEnd(False, True, True),
        ),
        (
            [TxnEvent.PREPARE, TxnEvent.SET_ASIDE, TxnEvent.COMMIT],
            True,
            TxnEnd(True, True, False),
        ),
        (
            [TxnEvent.PREPARE, TxnEvent.SET_ASIDE, TxnEvent.ABORT],
            True,
            TxnEnd(False, True, False),
        ),
    ],
)
def test_how_it_ends(events: list[TxnEvent], is_open: bool, wanted: TxnEnd) -> None:
    one = opened()
    if is_open:
        one.may_send(P)
        one.to_add(ALL)
    for event in events:
        one.step(event)
    assert one.ends() == wanted
    one.end_answered()
    assert one.ends() == wanted._replace(is_open=False), "it is not ended twice"
    one.ended()
    assert one.phase is Phase.READY
    assert one.begins_with_epoch == (TxnEvent.SET_ASIDE in events), "its names must end no other"
    one.epoch_given()
    assert not one.begins_with_epoch
    one.step(TxnEvent.BEGIN)
    assert one.is_empty
    one.step(TxnEvent.COMMIT)
    one.step(TxnEvent.FLUSHED)
    assert one.ends() == TxnEnd(True, False, False), "the former one has left nothing"


@pytest.mark.parametrize("code", FENCED)
def test_a_fenced_producer_says_to_close_it(code: ErrorCode) -> None:
    one = opened()
    said = one.failed(Refused(code, "t-0"))
    assert isinstance(said, ProducerFenced)
    assert isinstance(said, ProducerEnded)
    assert "close this producer" in str(said)
    assert "60000" in str(said)
    assert "an operator ended it" in str(said)
    for event in (
        TxnEvent.WRITE,
        TxnEvent.BEGIN,
        TxnEvent.COMMIT,
        TxnEvent.ABORT,
        TxnEvent.INIT,
    ):
        with pytest.raises(ProducerFenced):
            one.step(event)
    assert one.gives_up
    assert str(one.failed(LOST)) == str(said), "what came first counts"
    assert isinstance(pickle.loads(pickle.dumps(said)), ProducerFenced)


def test_a_producer_that_is_fenced_while_its_transaction_ends_still_says_why() -> None:
    one = opened()
    one.may_send(P)
    one.to_add(ALL)
    one.step(TxnEvent.ABORT)
    said = one.failed(Refused(ErrorCode.PRODUCER_FENCED, "t-0"))
    one.end_answered()
    one.ended()
    for event in (TxnEvent.BEGIN, TxnEvent.WRITE, TxnEvent.COMMIT, TxnEvent.ABORT):
        with pytest.raises(ProducerFenced) as raised:
            one.step(event)
        assert str(raised.value) == str(said)


@pytest.mark.parametrize(
    "error",
    [
        Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "transactional id 'id'", "not here"),
        Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id 'id'", "no"),
        Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "t-0"),
        Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "transactional id 'id'"),
        VersionUnsupported("old"),
    ],
    ids=str,
)
def test_what_ends_the_producer_keeps_the_servers_sentence(error: ClientError) -> None:
    one = made(TxnEvent.INIT)
    said = one.failed(error)
    assert isinstance(said, ProducerEnded)
    assert not isinstance(said, ProducerFenced)
    assert str(error) in str(said)
    assert "close this producer" in str(said)
    with pytest.raises(ProducerEnded):
        one.step(TxnEvent.INIT)


def test_a_time_out_above_the_limit_of_the_brokers_names_both_settings() -> None:
    error = Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "transactional id 'id'")
    said = str(made(TxnEvent.INIT).failed(error))
    assert "transaction_timeout_ms (60000) is above transaction.max.timeout.ms" in said
    assert "a shorter time" in said


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        GaveUp("not delivered within 120000 ms"),
        ConnectionLost("closed"),
        Refused(ErrorCode.TRANSACTION_ABORTABLE, "t-0"),
        Refused(ErrorCode.INVALID_TXN_STATE, "t-0"),
        Refused(ErrorCode.UNKNOWN_PRODUCER_ID, "t-0"),
        Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "t-0"),
        Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0"),
        Refused(ErrorCode.ILLEGAL_GENERATION, "group 'g'"),
        Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group 'g'"),
    ],
    ids=str,
)
def test_what_an_abort_mends_says_so(error: ClientError) -> None:
    one = opened()
    one.may_send(P)
    one.to_add(ALL)
    said = one.failed(error)
    assert isinstance(said, AbortTransaction)
    assert said.__cause__ is error
    assert str(error) in str(said)
    assert "call abort_transaction()" in str(said)
    assert one.failed(GaveUp("later")).__cause__ is error
    for event in (TxnEvent.WRITE, TxnEvent.COMMIT, TxnEvent.PREPARE):
        with pytest.raises(AbortTransaction):
            one.step(event)
    one.step(TxnEvent.ABORT)
    assert one.ends() == TxnEnd(False, True, True)
    one.ended()
    one.step(TxnEvent.BEGIN)
    one.step(TxnEvent.WRITE)
    assert one.problem is None


def test_an_abort_of_what_the_coordinator_does_not_have_succeeds() -> None:
    one = opened()
    one.may_send(P)
    one.to_add(ALL)
    one.step(TxnEvent.ABORT)
    unknown = Refused(ErrorCode.INVALID_TXN_STATE, "transactional id 'id'")
    assert one.refused_end(unknown) is None
    two = opened()
    two.may_send(P)
    two.to_add(ALL)
    two.step(TxnEvent.PREPARE)
    two.step(TxnEvent.SET_ASIDE)
    two.step(TxnEvent.ABORT)
    said = two.refused_end(unknown)
    assert isinstance(said, ProducerEnded), "another process has committed it"


def test_the_other_verdict_ends_the_producer() -> None:
    one = opened()
    one.may_send(P)
    one.to_add(ALL)
    one.step(TxnEvent.COMMIT)
    one.step(TxnEvent.FLUSHED)
    said = one.refused_end(Refused(ErrorCode.INVALID_TXN_STATE, "transactional id 'id'"))
    assert isinstance(said, ProducerEnded)
    two = opened()
    two.step(TxnEvent.COMMIT)
    two.step(TxnEvent.FLUSHED)
    said = two.refused_end(Refused(ErrorCode.TRANSACTION_ABORTABLE, "transactional id 'id'"))
    assert isinstance(said, AbortTransaction)


@dataclass
class Played:
    """What a coordinator and leaders have of one transactional id, and what they checked."""

    epoch: int = 0
    has: set[TopicPartition] = field(default_factory=set)
    is_open: bool = False
    batches: dict[TopicPartition, int] = field(default_factory=dict)
    """The batches without an outcome of each partition."""
    written: list[tuple[int, int]] = field(default_factory=list)
    """The transaction and the epoch of each batch that was sent."""
    lost: bool = False
    number: int = 0
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    prepared: set[int] = field(default_factory=set)


def test_random_histories_keep_the_order_of_requests() -> None:
    rng = random.Random(drawn_seed())
    ends = 0
    for _ in range(400):
        one, server = made(TxnEvent.INIT, TxnEvent.STARTED), Played()
        asked: tuple[TopicPartition, ...] = ()
        for _ in range(80):
            before = one.phase
            try:
                match rng.choice("bwwwaasoofcpxe"):
                    case "b":
                        if one.begins_with_epoch:
                            server.epoch += 1
                            one.epoch_given()
                        one.step(TxnEvent.BEGIN)
                        server.number += 1
                        server.lost = False
                        assert server.batches == {}
                    case "w":
                        one.step(TxnEvent.WRITE)
                        each = TopicPartition("t", rng.randrange(4))
                        if one.may_send(each):
                            assert each in server.has, "a batch before its partition was added"
                            server.batches[each] = server.batches.get(each, 0) + 1
                            server.written.append((server.number, server.epoch))
                    case "a":
                        asked = one.to_add(ALL)
                        if asked and rng.random() < 0.8:
                            # Also where no response comes.
                            server.is_open = True
                            server.has.update(asked)
                    case "s":
                        one.added(tuple(each for each in asked if each in server.has))
                        asked = ()
                    case "o":
                        if server.batches:
                            server.batches.pop(rng.choice(sorted(server.batches)))
                    case "f":
                        if before in (Phase.OPEN, Phase.FLUSHING):
                            one.failed(rng.choice([LOST, GaveUp("late")]))
                            server.lost = True
                    case "c":
                        one.step(TxnEvent.COMMIT)
                    case "p":
                        one.step(TxnEvent.PREPARE)
                        if not server.batches:
                            one.step(TxnEvent.SET_ASIDE)
                            server.prepared.add(server.number)
                    case "x":
                        one.step(TxnEvent.ABORT)
                    case "e":
                        if one.phase is Phase.FLUSHING and not server.batches:
                            one.step(TxnEvent.FLUSHED)
                        server.batches = {} if one.phase is Phase.ABORTING else server.batches
                        if one.phase in (Phase.COMMITTING, Phase.ABORTING):
                            ends += 1
                            asked = ()
                            _end(one, server, rng)
            except (WrongState, AbortTransaction):
                assert one.phase is before
        epochs = {number: {e for n, e in server.written if n == number} for number in
                  {n for n, _ in server.written}}  # fmt: skip
        assert all(len(each) == 1 for each in epochs.values()), "one epoch for a transaction"
        for number in (server.aborted | server.prepared) & set(epochs):
            later = {e for n, each in epochs.items() if n > number for e in each}
            assert not later & epochs[number], "the epoch after it is another one"
    assert ends > 500


def _end(one: ProducerTransaction, server: Played, rng: random.Random) -> None:
    """End a transaction as the shell does; some responses are lost."""
    end = one.ends()
    assert server.batches == {}
    if end.commits:
        assert not server.lost, "a transaction with a lost record is committed"
    if end.is_open:
        server.is_open, server.has = False, set()
        (server.committed if end.commits else server.aborted).add(server.number)
    else:
        assert not server.is_open, "a transaction stays open at the coordinator"
    if rng.random() < 0.2:
        return
    server.epoch += end.raises_epoch
    one.ended()
