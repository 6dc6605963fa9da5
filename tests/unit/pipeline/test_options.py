"""The options of the source: names, defaults, forms and every refusal, each one line."""

from __future__ import annotations

import pickle

import pytest

from tidelog.pipeline.__main__ import run
from tidelog.pipeline.errors import OptionRefused
from tidelog.pipeline.options import (
    Mode,
    OnBadRecord,
    OnOutage,
    SourceOptions,
    check_names,
    parse,
)
from tidelog.pipeline.places import PlaceKind, SubscriptionKind
from tidelog.pipeline.planning.admission import AdmissionLimits
from tidelog.pipeline.schema import BAD_COLUMNS

NEEDED = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def stream(**more: str) -> SourceOptions:
    return parse({**NEEDED, **more}, Mode.STREAM)


def batch(**more: str) -> SourceOptions:
    return parse({**NEEDED, **more}, Mode.BATCH)


def test_defaults_are_the_stock_sources() -> None:
    made = stream()
    assert made.starting.kind is PlaceKind.LATEST
    assert batch().starting.kind is PlaceKind.EARLIEST
    assert batch().ending.kind is PlaceKind.LATEST
    assert made.fail_on_data_loss
    assert made.limits == AdmissionLimits(10_000_000, None, 900_000)
    assert (made.on_outage, batch().on_outage) == (OnOutage.WAIT, OnOutage.FAIL)
    assert made.columns == (
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "epoch",
    )  # fmt: skip
    assert (made.offset_retries, made.offset_retry_interval_ms) == (3, 1000)
    assert made.check_crcs and not made.read_committed


def test_names_are_case_insensitive_and_options_picklable() -> None:
    made = stream(MAXOFFSETSPERTRIGGER="5", maxtriggerdelay="2m", includeheaders="TRUE")
    assert made.limits == AdmissionLimits(5, None, 120_000)
    assert "headers" in made.columns
    assert pickle.loads(pickle.dumps(made)) == made


def test_the_earlier_form_wins() -> None:
    made = batch(
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"t":{"0":9}}',
        startingOffsets='{"t":{"0":1}}',
    )
    assert (made.starting.kind, made.starting.timestamp_ms) == (PlaceKind.TIMESTAMP, 5)
    made = batch(startingOffsetsByTimestamp='{"t":{"0":9}}', startingOffsets='{"t":{"0":1}}')
    assert (made.starting.kind, made.starting.by_partition) == (
        PlaceKind.TIMESTAMPS,
        {"t": {0: 9}},
    )


def test_subscriptions() -> None:
    assert stream(subscribe=" a, b ,a").subscription.topics == ("a", "b")
    only = {"kafka.bootstrap.servers": "h:1"}
    pattern = parse({**only, "subscribePattern": "ab?"}, Mode.STREAM).subscription
    assert pattern.kind is SubscriptionKind.PATTERN
    assert [pattern.chooses(name, 0) for name in ("a", "ab", "xab", "abb")] == [
        True, True, False, False,
    ]  # fmt: skip
    assigned = parse({**only, "assign": '{"t":[2,0]}'}, Mode.STREAM).subscription
    assert [assigned.chooses("t", number) for number in range(3)] == [True, False, True]
    assert assigned.named_topics() == ("t",)


def test_quarantine_has_the_columns_that_name_bad_records() -> None:
    """Also beside a list of columns: without them such a row looks like a record."""
    assert stream().on_bad_record is OnBadRecord.FAIL
    for given in ({}, {"columns": "key,value"}):
        made = batch(onBadRecord="Quarantine", **given)
        assert made.on_bad_record is OnBadRecord.QUARANTINE
        assert made.columns[-4:] == BAD_COLUMNS and "key" in made.columns


def test_columns() -> None:
    assert stream(columns="value, key").columns == ("key", "value")
    assert "epoch" not in stream(includeEpoch="false").columns


@pytest.mark.parametrize(
    ("mode", "given", "words"),
    [
        ("both", {"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ("both", {"nonsense": "1"}, "option nonsense does not exist"),
        ("both", {"path": "/x"}, "load() takes no path"),
        ("both", {"kafka.auto.offset.reset": "latest"}, "cannot be set"),
        ("both", {"kafka.key.deserializer": "x"}, "cannot be set"),
        ("both", {"kafka.enable.auto.commit": "true"}, "cannot be set"),
        ("both", {"kafka.interceptor.classes": "x"}, "cannot be set"),
        ("both", {"kafka.fetch.max.byte": "1"}, "did you mean kafka.fetch.max.bytes?"),
        ("both", {"kafka.bootstrap.servers": " "}, "is required"),
        ("both", {"kafka.bootstrap.servers": "h:1,h:x"}, "'h:x' is not an address"),
        ("both", {"kafka.fetch.max.bytes": "many"}, "option kafka.fetch.max.bytes is 'many'"),
        ("both", {"kafka.fetch.max.wait.ms": "2147483648"}, "is larger than 2147483647"),
        ("both", {"startingOffsets": f'{{"t":{{"0":{2**63}}}}}'}, f"holds {2**63}"),
        ("both", {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "holds -1"),
        ("both", {"kafka.security.protocol": "SASL_SSL"}, "only PLAINTEXT"),
        ("both", {"kafka.isolation.level": "serializable"}, "read_committed"),
        ("both", {"subscribePattern": "x"}, "exactly one of"),
        ("both", {"subscribe": " , "}, "names no topic"),
        ("both", {"startingOffsets": "ealiest"}, "must be JSON"),
        ("both", {"startingOffsets": '{"t":{"0":-3}}'}, "holds -3"),
        ("both", {"startingOffsets": '{"t":[1]}'}, "must be JSON"),
        ("both", {"startingOffsets": "group"}, "needs kafka.group.id"),
        ("both", {"startingTimestamp": "soon"}, "milliseconds"),
        ("both", {"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ("both", {"failOnDataLoss": "yes"}, "true or false"),
        ("both", {"maxOffsetsPerTrigger": "0"}, "positive"),
        ("both", {"maxOffsetsPerTrigger": "1e6"}, "must be a number"),
        ("both", {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "larger"),
        ("both", {"onOutage": "hope"}, "onOutage must be wait or fail"),
        ("both", {"onBadRecord": "skip"}, "onBadRecord must be fail or quarantine"),
        ("both", {"gates": "barrier"}, "gates must be batch or off"),
        ("both", {"maxTriggerDelay": "soon"}, "must be a time"),
        ("both", {"minPartitions": "-1"}, "must be a number"),
        ("both", {"columns": "key,size"}, "names size"),
        ("both", {"columns": ","}, "names no column"),
        ("stream", {"endingOffsets": "latest"}, "streaming query"),
        ("stream", {"endingTimestamp": "5"}, "streaming query"),
        ("batch", {"startingOffsets": "latest"}, "batch query"),
        ("batch", {"startingOffsets": '{"t":{"0":-1}}'}, "batch query"),
        ("batch", {"endingOffsets": "earliest"}, "cannot be earliest"),
        ("batch", {"endingOffsets": '{"t":{"0":-2}}'}, "holds -2"),
    ],
)
def test_refusals(mode: str, given: dict[str, str], words: str) -> None:
    for each in Mode:
        if mode in ("both", each.value):
            with pytest.raises(OptionRefused) as refused:
                parse({**NEEDED, **given}, each)
            assert words in str(refused.value)
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[0]", '{"t":[]}', '{"t":[-1]}', '{"t":[true]}', "{}", "t:0"])
def test_malformed_assign(text: str) -> None:
    with pytest.raises(OptionRefused, match="option assign must be JSON"):
        parse({"kafka.bootstrap.servers": "h:1", "assign": text}, Mode.STREAM)


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(OptionRefused, match="not a regular expression"):
        parse({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, Mode.STREAM)


@pytest.mark.parametrize(
    ("job", "option", "instead"),
    [
        ("archive", "startingOffsets=latest", "use --starting-offsets"),
        ("archive", "SubscribePattern=x", "use --topic-pattern"),
        ("archive", "onBadRecord=fail", "use --on-bad-record"),
        ("audit", "startingTimestamp=5", "the lake says what is compared"),
        ("audit", "columns=key", "a lake has all columns"),
    ],
)
def test_a_job_refuses_the_options_that_are_its_own(
    job: str, option: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = ["--topic", "t"] if job == "archive" else []
    base = [job, "--bootstrap-server", "h:1", "--lake", "/nowhere", *topic]
    assert run([*base, "--option", option]) == 2
    name = option.partition("=")[0]
    assert capsys.readouterr().err == f"error: --option {name} cannot be given: {instead}\n"


@pytest.mark.parametrize("chosen", [(), ("-t", "t", "--topic-pattern", "t.*")])
def test_an_archive_has_topics_or_a_pattern(
    chosen: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["archive", "--bootstrap-server", "h:1", "--lake", "/nowhere"]
    assert run([*base, *chosen]) == 2
    said = "error: name the topics: either with --topic or with --topic-pattern\n"
    assert capsys.readouterr().err == said


def test_properties_without_effect_are_accepted() -> None:
    assert check_names({"kafka.session.timeout.ms": "1"}) == {"kafka.session.timeout.ms": "1"}


def test_a_batch_has_a_bound_without_any_option() -> None:
    """P12: the first batch of a query would be all of the history."""
    assert stream().limits.max_offsets == 10_000_000
    assert stream(minOffsetsPerTrigger="20000000").limits.max_offsets == 20_000_000
    assert stream(maxOffsetsPerTrigger="30000000").limits.max_offsets == 30_000_000
