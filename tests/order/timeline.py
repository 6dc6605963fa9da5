"""The timeline of one key, for a violation: its homes as columns, time downwards.

Owns the text only.
"""

from __future__ import annotations

from tests.order.checks import Violation
from tests.order.history import Delivery, MetadataSeen, Resize
from tests.order.reference import NO_END, Reference

WIDTH = 34
MOST_LINES = 60
"""Lines of a timeline: the last ones are left out, and counted."""


def timeline(reference: Reference, key: str) -> str:
    """Return what happened to a key. Grows with its records and the resizes."""
    homes = reference.homes.get(key, [])
    found = reference.by_key.get(key, {})
    elsewhere = sorted(partition for partition, _ in found)
    partitions = list(dict.fromkeys([*(home.partition for home in homes), *elsewhere]))
    columns = {partition: column for column, partition in enumerate(partitions)}
    lines: list[tuple[float, str]] = []

    def add(at: float, partition: int, text: str) -> None:
        lines.append((at, f"{at:>10.3f}  {' ' * WIDTH * columns[partition]}{text}"))

    for (partition, offset), send in found.items():
        add(send.sent_at, partition, f"{send.writer} sends {send.uid} to {offset}")
        if send.done_at >= 0:
            add(send.done_at, partition, f"{send.uid}: {send.outcome}")
    for delivery in reference.history.of(Delivery):
        if (delivery.partition, delivery.offset) in found:
            ended = "no end" if delivery.ended_at is None else f"until {delivery.ended_at:.3f}"
            member = f"{delivery.group}/{delivery.member}"
            text = f"{member}: {delivery.uid} at {delivery.offset}, {ended}"
            add(delivery.begun_at, delivery.partition, text)
    for resize in reference.history.of(Resize):
        text = f"resize epoch {resize.resize_epoch}: {resize.count} partitions"
        lines.append((resize.at, f"{resize.at:>10.3f}  {text}{', undone' * resize.is_undone}"))
    for seen in reference.history.of(MetadataSeen):
        text = f"broker {seen.broker} shows {seen.count} partitions, epoch {seen.resize_epoch}"
        lines.append((seen.at, f"{seen.at:>10.3f}  {text}"))
    lines.sort(key=lambda line: line[0])
    spans = ", then ".join(
        f"partition {home.partition} from {home.start}"
        + ("" if home.end == NO_END else f" to {home.end}")
        for home in homes
    )
    head = "".join(f"{f'partition {partition}':<{WIDTH}}" for partition in partitions)
    shown = [line for _, line in lines[:MOST_LINES]]
    left = len(lines) - len(shown)
    return "\n".join(
        [
            f"key {key}: {spans}",
            f"{'time':>10}  {head}".rstrip(),
            *shown,
            *([f"and {left} more"] if left else []),
        ]
    )


def report(reference: Reference, violations: list[Violation], seed: int | None = None) -> str:
    """Return the first violations, and the timeline of the first key that one concerns."""
    if not violations:
        return "no violation"
    lines = [f"{len(violations)} violations" + ("" if seed is None else f", seed {seed}")]
    lines += [f"{each.rule} {each.key}: {each.text}" for each in violations[:10]]
    key = next((each.key for each in violations if each.key), None)
    if key is not None:
        lines.append(timeline(reference, key))
    return "\n".join(lines)
