"""Broken rules of autoscaling: what is decided, and which rates count (KIP-253)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CONTROLLER = "src/tidelog/controller"
RULE = f"{CONTROLLER}/decisions/autoscaling.py"
TOPICS = f"{CONTROLLER}/decisions/autoscaled_topics.py"

OF_RULE = "tests/unit/controller/test_autoscaling.py"
OF_TOPICS = "tests/unit/controller/test_autoscaled_topics.py"

MUTANTS = (
    Mutant(
        "a topic shrinks by its load while unaware writers are there",
        RULE,
        "    if seen.unaware:\n",
        "    if seen.unaware and not seen.count:\n",
        f"{OF_RULE} {OF_TOPICS}",
    ),
    Mutant(
        "one broker's rate doubles a topic",
        RULE,
        "min(rate, MOST_TARGETS * target)",
        "rate",
        f"{OF_RULE} {OF_TOPICS}",
    ),
    Mutant(
        "a topic with an unknown rate shrinks",
        RULE,
        "    is_low = is_complete and sum(known) < low\n",
        "    is_complete = True\n    is_low = sum(known) < low\n",
        f"{OF_RULE} {OF_TOPICS}",
    ),
    Mutant(
        "a resize begins no cool-down in the store",
        f"{CONTROLLER}/decisions/resize_requests.py",
        "grow_after_ms=cools.grow_after_ms, shrink_after_ms=cools.shrink_after_ms",
        "grow_after_ms=0, shrink_after_ms=0",
        OF_TOPICS,
    ),
    Mutant(
        "the rate of a broker that does not lead counts",
        f"{CONTROLLER}/decisions/soft_state.py",
        "        if state is not None and state.leader == broker:\n",
        "        if state is not None:\n",
        OF_TOPICS,
    ),
    Mutant(
        "a rate from before a resize counts after it",
        TOPICS,
        "(rate.broker, rate.resize_epoch) == (leader, epoch)",
        "rate.broker == leader",
        OF_TOPICS,
    ),
    Mutant(
        "partitions.auto is accepted without retired.purge",
        "src/tidelog/model/configs/resolve.py",
        "    if RETIRED_PURGE not in configs:\n",
        "    if RETIRED_PURGE not in configs and not configs:\n",
        OF_TOPICS,
    ),
    Mutant(
        "an internal topic is resized by its load",
        TOPICS,
        "        and name not in INTERNAL_TOPICS\n",
        "",
        OF_TOPICS,
    ),
    Mutant(
        "a topic below its initial count is resized by its load",
        TOPICS,
        "        and count_of(node) >= history.initial_partition_count\n",
        "",
        OF_TOPICS,
    ),
)
