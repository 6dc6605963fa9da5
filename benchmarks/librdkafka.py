"""librdkafka's own consumer without Python: the library of the wheel, called through ctypes.

Each record goes to a callback in C that does nothing (`labs` of the C library), so that the client
costs what librdkafka costs. A Python consumer makes an object of each record, which takes longer
than everything that broker and library do together.
"""

from __future__ import annotations

import ctypes
import functools
import time
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import confluent_kafka

CONSUMER = 1
BEGINNING = -2
CONFIG = {
    # As much as the topic holds may wait for the callback: at the limit the library pauses for 1 s.
    "queued.min.messages": "10000000",
    "queued.max.messages.kbytes": "2000000",
}
SIGNATURES = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_queue_new": (c_void_p, [c_void_p]),
    "rd_kafka_consume_start_queue": (c_int, [c_void_p, c_int32, c_int64, c_void_p]),
    "rd_kafka_consume_callback_queue": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "rd_kafka_consume_stop": (c_int, [c_void_p, c_int32]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_destroy": (None, [c_void_p]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The library that confluent-kafka brings."""
    folder = Path(confluent_kafka.__file__).parent
    places = [*folder.parent.glob("confluent_kafka.libs/librdkafka-*"), *folder.glob("librdkafka*")]
    assert places, f"there is no librdkafka beside {folder}"
    found = ctypes.CDLL(str(places[0]))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def consume(bootstrap: str, topic: str, count: int, deadline_s: float = 120) -> float:
    """Read partition 0 from its beginning; records per second after the first ones have come.

    AssertionError when `count` records do not come in time.
    """
    rd = library()
    why = ctypes.create_string_buffer(512)
    conf = rd.rd_kafka_conf_new()
    for name, value in {"bootstrap.servers": bootstrap, **CONFIG}.items():
        done = rd.rd_kafka_conf_set(conf, name.encode(), value.encode(), why, len(why))
        assert done == 0, why.value
    client = rd.rd_kafka_new(CONSUMER, conf, why, len(why))
    assert client, why.value
    place = rd.rd_kafka_topic_new(client, topic.encode(), None)
    queue = rd.rd_kafka_queue_new(client)
    nothing = ctypes.cast(ctypes.CDLL(None).labs, c_void_p)
    try:
        assert rd.rd_kafka_consume_start_queue(place, 0, BEGINNING, queue) == 0
        end = time.perf_counter() + deadline_s
        got = first = 0
        begun = end
        while got < count:
            got += rd.rd_kafka_consume_callback_queue(queue, 1000, nothing, None)
            if not first:
                first, begun = got, time.perf_counter()
            assert time.perf_counter() < end, f"{got} of {count} records"
        took_s = time.perf_counter() - begun
        rd.rd_kafka_consume_stop(place, 0)
    finally:
        # All but the client first: it waits for whoever still holds it.
        rd.rd_kafka_queue_destroy(queue)
        rd.rd_kafka_topic_destroy(place)
        rd.rd_kafka_destroy(client)
    return (count - first) / took_s
