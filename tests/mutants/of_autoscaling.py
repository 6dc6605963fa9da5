"""Broken rules of autoscaling: what is decided, and which rates count (KIP-253)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OF_RULE = "tests/unit/controller/test_autoscaling.py"
OF_TOPICS = "tests/unit/controller/test_autoscaled_topics.py"

MUTANTS = (
    Mutant(
        "a topic shrinks by its load while unaware writers are there",
        "src/tidelog/controller/decisions/autoscaling.py::_shrunk",
        "    if seen.unaware:\n",
        "    if seen.unaware and not seen.count:\n",
        f"{OF_RULE} {OF_TOPICS}",
    ),
    Mutant(
        "one broker's rate doubles a topic",
        "src/tidelog/controller/decisions/autoscaling.py::decide",
        "min(rate, MOST_TARGETS * target)",
        "rate",
        f"{OF_RULE} {OF_TOPICS}",
    ),
    Mutant(
        "a topic with an unknown rate shrinks",
        "src/tidelog/controller/decisions/autoscaling.py::decide",
        "    is_low = is_complete and sum(known_rates) < low\n",
        "    is_complete = True\n    is_low = sum(known_rates) < low\n",
        f"{OF_RULE} {OF_TOPICS}",
    ),
    Mutant(
        "a resize begins no cool-down in the store",
        "src/tidelog/controller/decisions/resize_requests.py::begun",
        "grow_after_ms=cools.grow_after_ms, shrink_after_ms=cools.shrink_after_ms",
        "grow_after_ms=0, shrink_after_ms=0",
        OF_TOPICS,
    ),
    Mutant(
        "the rate of a broker that does not lead counts",
        "src/tidelog/controller/decisions/soft_state.py::note_rates",
        "        if state is not None and state.leader == broker:\n",
        "        if state is not None:\n",
        OF_TOPICS,
    ),
    Mutant(
        "a rate from before a resize counts after it",
        "src/tidelog/controller/decisions/autoscaled_topics.py::observed",
        "(rate.broker, rate.resize_epoch) == (leader, epoch)",
        "rate.broker == leader",
        OF_TOPICS,
    ),
    Mutant(
        "partitions.auto is accepted without retired.purge",
        "src/tidelog/model/configs/resolve.py::_why_not_auto",
        "    if RETIRED_PURGE not in configs:\n",
        "    if RETIRED_PURGE not in configs and not configs:\n",
        OF_TOPICS,
    ),
    Mutant(
        "an internal topic is resized by its load",
        "src/tidelog/controller/decisions/autoscaled_topics.py::is_able",
        "        and name not in INTERNAL_TOPICS\n",
        "",
        OF_TOPICS,
    ),
    Mutant(
        "a topic below its initial count is resized by its load",
        "src/tidelog/controller/decisions/autoscaled_topics.py::is_able",
        "        and count_of(node) >= history.initial_partition_count\n",
        "",
        OF_TOPICS,
    ),
)
