"""The options of the sink: names, defaults, and every refusal in one line."""

from __future__ import annotations

import pickle

import pytest

from tidelog.client.producing.settings import ALL
from tidelog.pipeline.errors import OptionRefused
from tidelog.pipeline.sink.options import SinkOptions, parse, settings_of
from tidelog.pipeline.sink.protocol import OnLost, OnNewQuery

NEEDED = {"kafka.bootstrap.servers": "h:1", "topic": "t"}


def sink(**more: str) -> SinkOptions:
    return parse({**NEEDED, **more})


def test_defaults_are_kafkas_but_for_the_size_of_batches() -> None:
    made = sink(checkpointLocation="/c", queryName="q")
    assert (made.bootstrap_servers, made.topic, made.order_by) == ("h:1", "t", ())
    cluster, send = settings_of(made)
    assert send.idempotent and send.acks == ALL and send.batch_bytes == 262_144
    assert send.transactional_id is None and cluster.client_id == "tidelog-spark"
    restored = pickle.loads(pickle.dumps(made))
    # What goes to the executors has no state: a process makes its settings once.
    assert restored == made and settings_of(restored) is settings_of(made)


def test_properties_of_the_producer() -> None:
    made = parse(
        {
            "KAFKA.Bootstrap.Servers": "h:1",
            "TOPIC": "t",
            "orderBy": "epoch, offset",
            "kafka.acks": "1",
            "kafka.compression.type": "zstd",
            "kafka.LINGER.ms": "20",
            "kafka.enable.idempotence": "false",
            "kafka.reconnect.backoff.ms": "9",
            "kafka.client.id": "mine",
        }
    )
    assert made.order_by == ("epoch", "offset")
    cluster, send = settings_of(made)
    assert (send.acks, send.compression, send.linger_ms) == (1, "zstd", 20)
    assert not send.idempotent and cluster.client_id == "mine"


def test_an_exactly_once_sink() -> None:
    made = sink(transactionalId="s", onNewQuery="reset", onLostBatch="skip")
    assert (made.sink, made.on_new_query, made.on_lost) == ("s", OnNewQuery.RESET, OnLost.SKIP)
    assert settings_of(made)[1].transaction_timeout_ms == 900_000
    made = sink(transactionalId="s", **{"kafka.transaction.timeout.ms": "60000"})
    assert settings_of(made)[1].transaction_timeout_ms == 60_000
    assert (made.on_new_query, made.on_lost) == (OnNewQuery.FAIL, OnLost.FAIL)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers is required"),
        ({"kafka.bootstrap.servers": "h:x"}, "option kafka.bootstrap.servers: "),
        ({"topic": "a b"}, "option topic is 'a b'"),
        ({"path": "/t"}, "save() and start() take no path"),
        ({"topics": "t"}, "option topics does not exist for a write; did you mean topic?"),
        ({"subscribe": "t"}, "option subscribe does not exist for a write"),
        ({"kafka.key.serializer": "x"}, "option kafka.key.serializer cannot be set: keys are"),
        ({"kafka.value.serializer": "x"}, "option kafka.value.serializer cannot be set"),
        ({"kafka.partitioner.class": "x"}, "use the column partition"),
        ({"kafka.transactional.id": "x"}, "option kafka.transactional.id cannot be set"),
        ({"kafka.interceptor.classes": "x"}, "interceptors are not supported"),
        ({"kafka.compresion.type": "x"}, "did you mean kafka.compression.type?"),
        ({"kafka.compression.type": "x"}, "the kafka. options: compression_type 'x' is unknown"),
        ({"kafka.linger.ms": "-1"}, "option kafka.linger.ms is '-1'; it must be a number"),
        ({"kafka.enable.idempotence": "y"}, "option kafka.enable.idempotence is 'y'; it must be"),
        ({"kafka.enable.idempotence": "true", "kafka.acks": "1"}, "an idempotent producer needs"),
        ({"transactionalId": ""}, "option transactionalId is ''; it must be a name"),
        ({"transactionalId": "s" * 201}, "it must be a name of at most 200 characters"),
        ({"onNewQuery": "reset"}, "option onNewQuery needs transactionalId"),
        ({"onLostBatch": "skip"}, "option onLostBatch needs transactionalId"),
        (
            {"transactionalId": "s", "onNewQuery": "x"},
            "option onNewQuery is 'x'; it must be fail or reset",
        ),
        ({"transactionalId": "s", "kafka.acks": "1"}, "an idempotent producer needs acks='all'"),
        ({"orderBytes": "1g"}, "option orderBytes is '1g'; it must be a number"),
    ],
)
def test_refusals(options: dict[str, str], line: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        parse({**NEEDED, **options})
    assert line in str(refused.value) and "\n" not in str(refused.value)
