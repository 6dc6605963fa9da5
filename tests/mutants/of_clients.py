"""Broken rules of the clients: what is fetched, committed, sent again, and subscribed to."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FETCHES = "tests/component/client/test_fetcher.py"
ERRORS = "tests/component/client/test_fetcher_errors.py"
ASSIGNED = "tests/unit/client/test_assigned.py"
BATCHES = "tests/unit/client/test_batches.py"
RESETS = "tests/component/client/test_first_positions.py"
POSITIONS = "tests/unit/client/test_reader_positions.py"
COMMITS = "tests/component/client/test_committed_offsets.py"
HELD = "tests/component/client/test_held_records.py"
FROZEN_PRODUCE = "tests/simulation/test_frozen_peers.py::test_another_broker_is_asked_soon[Produce]"
TURNING = "tests/unit/client/test_topic_turning.py"
STUCK = "tests/component/client/test_stuck_partitions.py"
LANES = "tests/component/client/test_lanes.py"
DELIVERY = "tests/component/client/test_delivery.py"
CONSUMER = "tests/component/aio/test_consumer.py"
SUBSCRIPTIONS = "tests/component/aio/test_subscriptions.py"
FROZEN = "tests/simulation/test_frozen_peers.py"

MUTANTS = (
    Mutant(
        "tombstones for a broker that reads nothing have no limit",
        "src/tidelog/client/producing/ancestor_tombstones.py::AncestorTombstones._send_to",
        "        if connection.unsent_bytes > MOST_UNSENT_BYTES:\n",
        "        if connection.unsent_bytes < 0:\n",
        "tests/component/client/test_tombstones_to_stopped_brokers.py",
    ),
    Mutant(
        "a producer with acks=0 writes on to a leader that takes no bytes",
        "src/tidelog/client/connecting/connection.py::ClientConnection.submit",
        "        if not answered and not self._paused:\n",
        "        if not answered:\n",
        "tests/component/client/test_unanswered_produce.py",
    ),
    Mutant(
        "a broker's own report waits for the one of the controller",
        "src/tidelog/client/admin/nodes.py::describe_itself",
        'cluster.connection(node_id, "own report")',
        'cluster.connection(node_id, "condition")',
        "tests/simulation/test_silent_controller.py",
    ),
    Mutant(
        "a list of groups waits for a broker that leads no partition of their topic",
        "src/tidelog/client/admin/groups.py::_coordinates_no_longer",
        "    if node_id in {partition.leader for partition in topic.partitions.values()}:\n",
        "    if topic is not None:\n",
        FROZEN,
    ),
    Mutant(
        "a reader waits for a stopped leader although another one leads",
        "src/tidelog/client/metadata.py::ClusterMetadata.led_elsewhere",
        "            if now is None or (now.leader == node_id and now.leader_epoch <= epoch):\n",
        "            if now is None or now.leader != node_id or now.leader_epoch <= epoch:\n",
        FROZEN,
    ),
    Mutant(
        "a member waits for a stopped coordinator although another one coordinates",
        "src/tidelog/client/found_coordinators.py::FoundCoordinators._moved",
        '        if coordinator == former:\n            return ""\n',
        '        return ""\n',
        FROZEN,
    ),
    Mutant(
        "the deletion of a topic is sent to a second broker",
        "src/tidelog/client/connections.py::BrokerConnections._send_to_any",
        "        if changes:\n",
        "        if changes and False:\n",
        FROZEN,
    ),
    Mutant(
        "a request that is answered in time is looked for elsewhere",
        "src/tidelog/client/connecting/giving_up.py::unless_taken_over",
        "        timer.cancel()\n",
        "        pass\n",
        "tests/component/client/test_giving_up.py",
    ),
    Mutant(
        "a repeated deletion of a group is refused as if it were the first",
        "src/tidelog/client/admin/groups.py::_delete",
        "        if attempts == 1 or refused.code",
        "        if attempts or refused.code",
        "tests/component/client/test_group_deletion.py",
    ),
    Mutant(
        "a deletion of offsets that was late is not tried again",
        "src/tidelog/client/admin/groups.py::_error_of_offsets",
        "answer.error_code or next(passing, 0)",
        "answer.error_code",
        "tests/component/client/test_group_deletion.py",
    ),
    Mutant(
        "a response that is late divides no broker",
        "src/tidelog/client/producing/unanswered.py::Unanswered._search_for_late",
        "            elif self._flights.held_up(node_id, self._cluster.view):\n",
        "            elif False:\n",
        LANES,
    ),
    Mutant(
        "partitions on the same brokers are divided",
        "src/tidelog/client/producing/flights.py::Flights.held_up",
        " if is_mixed((queue.partition for queue in queues), view) else []\n",
        "\n",
        LANES,
    ),
    Mutant(
        "a broker that does not greet gets everything twice",
        "src/tidelog/client/producing/unanswered.py::Unanswered._divide",
        "            await self._cluster.connection(node_id, Lane(node_id, 1).purpose)\n",
        "",
        LANES,
    ),
    Mutant(
        "a broker stays divided for ever",
        "src/tidelog/client/producing/unanswered.py::Unanswered._search_for_late",
        "        lanes.join(now)\n",
        "",
        LANES,
    ),
    Mutant(
        "a partition has batches on two connections",
        "src/tidelog/client/producing/send_queue.py::SendQueue.may_go_to",
        "lane == self._lane\n",
        "lane.node_id == self._lane.node_id\n",
        "tests/component/client/test_send_queue.py",
    ),
    Mutant(
        "a member reads from a reset that it has not committed",
        "src/tidelog/client/groups/first_positions.py::Resets._commits_first",
        "        return topic in self.ordered and isinstance(self._member, GroupMember)\n",
        "        return False\n",
        RESETS,
    ),
    Mutant(
        "a member reads where its commit of a reset was refused",
        "src/tidelog/client/groups/first_positions.py::Resets.of_topic",
        " for tp, offset in positions.items() if committed.get(tp) == offset})\n",
        " for each, at in positions.items()})\n",
        RESETS,
    ),
    Mutant(
        "what a gate forbids stays with the application",
        "src/tidelog/client/groups/reader_positions.py::ReaderPositions.take_back",
        "beyond_gates and not (tp in limits and fetched[tp] > limits[tp])\n",
        "beyond_gates\n",
        POSITIONS,
    ),
    Mutant(
        "what was committed is sent again with what was not",
        "src/tidelog/client/groups/committed_offsets.py::commit_offsets.error_of",
        "                left.pop(tp, None)\n",
        "",
        COMMITS,
    ),
    Mutant(
        "a member joins again for a partition that it does not know",
        "src/tidelog/client/groups/resized_topics.py::is_resized",
        "        and tp.partition in seen[tp.topic].partitions\n",
        "",
        "tests/unit/client/test_resized_topics.py",
    ),
    Mutant(
        "a record that expires first does not set the timer of a turn",
        "src/tidelog/client/producing/earliest_timer.py::EarliestTimer.set",
        "            if self._at <= time_s:\n",
        "            if True:\n",
        HELD,
    ),
    Mutant(
        "a turn lets go of a queue with a batch that has no outcome",
        "src/tidelog/client/producing/topic_epochs.py::TopicEpochs.has_use_for",
        "        if not queue.empty:\n",
        "        if False:\n",
        HELD,
    ),
    Mutant(
        "after a growth a child does not wait for batches of its parent",
        "src/tidelog/partitioning/older_keys.py::OlderKeys.add",
        "        if modulus == ALONE or not self._level:\n",
        "        if True:\n",
        "tests/component/client/test_turning.py",
    ),
    Mutant(
        "a batch whose partition was named holds up the line of the partition",
        "src/tidelog/client/producing/topic_epochs.py::TopicEpochs._modulus",
        "        if stamp is None or batch.is_fixed or not is_by_key",
        "        if stamp is None or not is_by_key",
        STUCK,
    ),
    Mutant(
        "records that open together are not in the order of send",
        "src/tidelog/client/producing/topic_epochs.py::TopicEpochs.opened",
        "        return sorted(records, key=lambda record: record.number)\n",
        "        return records\n",
        STUCK,
    ),
    Mutant(
        "a producer asks for no metadata while a leader is silent",
        "src/tidelog/client/producing/unanswered.py::Unanswered._search_for_silent",
        '            self._work.run("silent", partial(self._ask_others, silent))\n',
        "            pass\n",
        FROZEN_PRODUCE,
    ),
    Mutant(
        "a producer does not give up what is with a former leader",
        "src/tidelog/client/producing/delivery.py::BatchDelivery.drain",
        "        self._give_up_moved()\n",
        "",
        "tests/component/client/test_turning.py",
    ),
    Mutant(
        "a producer without idempotence sends again what a former leader may write",
        "src/tidelog/client/producing/send_queue.py::SendQueue.give_up",
        "        if not self._idempotent or any(",
        "        if any(",
        "tests/component/client/test_turning.py",
    ),
    Mutant(
        "metadata that are not newer move what is in flight",
        "src/tidelog/client/producing/flights.py::_is_led_elsewhere",
        " and listed.leader_epoch > queue.leader_epoch\n",
        "\n",
        "tests/component/client/test_turning.py",
    ),
    Mutant(
        "a refusal that metadata have explained holds its whole topic",
        "src/tidelog/client/producing/turning.py::TopicTurning.refused",
        "        if is_unexplained:\n",
        "        if True:\n",
        TURNING,
    ),
    Mutant(
        "what was taken back last is hashed first",
        "src/tidelog/client/producing/turning.py::TopicTurning._go_on",
        "sorted(epochs.held, key=lambda record: record.number), []",
        "epochs.held, []",
        TURNING,
    ),
    Mutant(
        "a batch of a partition that was removed is waited for",
        "src/tidelog/client/producing/turning.py::TopicTurning._let_go",
        "            elif was_removed(queue, batch, epochs.seen):\n",
        "            elif False:\n",
        TURNING,
    ),
    Mutant(
        "a record without a key waits for a partition that is stuck",
        "src/tidelog/client/producing/turning.py::TopicTurning.home_of",
        "        if key is None and epochs.is_shut(home):\n",
        "        if False:\n",
        STUCK,
    ),
    Mutant(
        "another broker than the one that refused is asked for the newer epoch",
        "src/tidelog/client/producing/turning.py::TopicTurning.refused",
        "        epochs.refused_by = result.node_id\n",
        "",
        HELD,
    ),
    Mutant(
        "the halves of a batch never expire",
        "src/tidelog/client/producing/delivery.py::BatchDelivery._inherit",
        "            self.times.expire_at(batch.deadline, queue, half)\n",
        "",
        DELIVERY,
    ),
    Mutant(
        "the memory of the halves of a batch is free",
        "src/tidelog/client/producing/delivery.py::BatchDelivery._inherit",
        "            self.memory.used += half.size\n",
        "",
        DELIVERY,
    ),
    Mutant(
        "an answer from before a seek moves the position",
        "src/tidelog/client/fetching/fetcher.py::Fetcher._fetch",
        "if state is not None and incarnations.get(partition) == state.incarnation:\n",
        "if state is not None:\n",
        FETCHES,
    ),
    Mutant(
        "bytes that were dropped count as buffered for ever",
        "src/tidelog/client/fetching/fetcher.py::Fetcher._drop",
        "        self._free(state, state.buffered_bytes)\n",
        "        pass\n",
        FETCHES,
    ),
    Mutant(
        "what is fetched beyond shut gates takes the memory of open ones",
        "src/tidelog/client/fetching/fetcher.py::Fetcher._wants_more",
        "            self._buffered_bytes - gated_bytes < self._prefetch_bytes\n",
        "            self._buffered_bytes < self._prefetch_bytes\n",
        FETCHES,
    ),
    Mutant(
        "an error is raised before the records that were fetched before it",
        "src/tidelog/client/fetching/fetcher.py::Fetcher._raise_problem",
        "            if state.problem is not None and not state.buffered:\n",
        "            if state.problem is not None:\n",
        ERRORS,
    ),
    Mutant(
        "a reset passes over what was fetched before",
        "src/tidelog/client/fetching/assigned.py::FetchedPartition.reset_to",
        "        if not self.buffered:\n            self.position, self.epoch",
        "        if True:\n            self.position, self.epoch",
        ERRORS,
    ),
    Mutant(
        "the epoch of what was fetched last is not known to the next leader",
        "src/tidelog/client/fetching/assigned.py::FetchedPartition.add",
        "self.fetch_offset, self.fetch_epoch = fetched.next_offset, fetched.leader_epoch\n",
        "self.fetch_offset = fetched.next_offset\n",
        ERRORS,
    ),
    Mutant(
        "a deposed leader is read from as soon as it is named",
        "src/tidelog/client/fetching/assigned.py::FetchedPartition.least_epoch",
        "self.lagging_since is not None and (now - self.lagging_since) * 1000 > longest_ms:\n",
        "self.lagging_since is not None:\n",
        ASSIGNED,
    ),
    Mutant(
        "a partition that is not known yet is an error at once",
        "src/tidelog/client/fetching/assigned.py::FetchedPartition.fails_for_good",
        "(unknown and lasted_ms > limit_ms)",
        "unknown",
        ASSIGNED,
    ),
    Mutant(
        "a transaction that was aborted before a gate hides the next one of its producer",
        "src/tidelog/client/fetching/batches.py::split_at",
        "                aborted.remove(ended)\n",
        "                pass\n",
        BATCHES,
    ),
    Mutant(
        "a former pattern takes the subscription back",
        "src/tidelog/aio/consumer.py::Consumer.subscribe",
        "        self._topics = frozenset(names)\n        self._stop_watching()\n",
        "        self._topics = frozenset(names)\n",
        SUBSCRIPTIONS,
    ),
    Mutant(
        "a former pattern that is looked up now takes the subscription back",
        "src/tidelog/aio/consumer.py::Consumer.ready",
        "            if pattern is self._pattern and self._watching is None:\n",
        "            if self._watching is None:\n",
        SUBSCRIPTIONS,
    ),
    Mutant(
        "a consumer that closes stays in the group of its former subscription",
        "src/tidelog/aio/consumer.py::Consumer.close",
        "            await self.leave_former(autocommit)\n",
        "",
        SUBSCRIPTIONS,
    ),
    Mutant(
        "an iteration returns records at hand although their gate has shut",
        "src/tidelog/aio/consumer.py::Consumer.take_one",
        "self._now() >= self._attend_at or reader.has_shut:\n",
        "self._now() >= self._attend_at:\n",
        CONSUMER,
    ),
    Mutant(
        "one record is returned of two that are taken",
        "src/tidelog/aio/consumer.py::Consumer.getone",
        "self._polled(partitions, 60_000, 1)\n",
        "self._polled(partitions, 60_000, 2)\n",
        CONSUMER,
    ),
    Mutant(
        "a producer waits for all replicas whatever its acks are",
        "src/tidelog/aio/producer_configs.py::producer_settings",
        "            acks=acks,\n",
        "",
        "tests/unit/aio/test_producer_configs.py",
    ),
    Mutant(
        "a consumer returns records at hand for ever without a look at its group",
        "src/tidelog/aio/consumer.py::Consumer.is_due",
        "            or self._now() >= self._attend_at\n",
        "",
        CONSUMER,
    ),
)
