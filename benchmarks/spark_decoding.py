"""How fast do record batches become Arrow columns, in one process, without Spark?

100-byte values in batches of 1 MB and of 16 kB (the producers' default), of one length and of
many, with and without keys, and compressed. Prints the table of `docs/internals/pipeline.md`.
"""

from __future__ import annotations

import random
import time

from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.schema import STOCK_COLUMNS
from tidelog.records.builder import NewRecord, build_batch

_BYTES = 8 << 20
_ROUNDS = 7
_CASES = (
    ("100 B, 1 MB batches", 1 << 20, False, False, 0),
    ("100 B, 16 kB batches", 16 << 10, False, False, 0),
    ("0-200 B, keys, 1 MB batches", 1 << 20, True, True, 0),
    ("0-200 B, keys, 16 kB batches", 16 << 10, True, True, 0),
    ("0-200 B, keys, 1 MB, lz4", 1 << 20, True, True, 3),
    ("0-200 B, keys, 1 MB, zstd", 1 << 20, True, True, 4),
)


def batches(batch_bytes: int, varied: bool, keyed: bool, codec: int) -> tuple[bytes, int]:
    """Some megabytes of batches and how many records they hold."""
    rng = random.Random(1)
    data, offset, payload = [], 0, 0
    while payload < _BYTES:
        records, size = [], 0
        while size < batch_bytes:
            value = rng.randbytes(rng.randrange(201) if varied else 100)
            key = b"key-%d" % rng.randrange(1000) if keyed else None
            # 250 records in a millisecond, as a fast producer stamps them.
            records.append(NewRecord(1_700_000_000_000 + len(records) // 250, key, value))
            size += len(value) + len(key or b"") + 10
        data.append(build_batch(records, codec=codec, base_offset=offset))
        offset += len(records)
        payload += size
    return b"".join(data), offset


def rate(data: bytes, count: int) -> float:
    """Records per second: the best of some rounds, checksums included."""
    best = 0.0
    for _ in range(_ROUNDS):
        decoder = Decoder(Origin("topic", 0), STOCK_COLUMNS, 0, count)
        begun = time.process_time()
        rows = sum(batch.num_rows for batch in decoder.decode(data))
        best = max(best, rows / (time.process_time() - begun))
        assert rows == count
    return best


def main() -> None:
    for title, batch_bytes, varied, keyed, codec in _CASES:
        data, count = batches(batch_bytes, varied, keyed, codec)
        print(f"{title:32} {rate(data, count) / 1e6:5.1f} M records per CPU second")


if __name__ == "__main__":
    main()
