"""Broken rules of transactional ids."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULES = "tests/unit/transactions/test_rules.py"
TABLE = "tests/unit/transactions/test_table.py"
RANDOM = "tests/unit/transactions/test_table_random.py"
SHELL = "tests/broker/test_transactions_coordinator.py"
REQUESTS = "tests/broker/test_transactions_requests.py"
MARKERS = "tests/unit/records/test_control_records.py"

NEWEST = "tests/unit/broker/test_newest_records.py"

LOST = "tests/broker/test_lost_states.py"

HANGING = "tests/unit/transactions/test_hanging.py"
CHECKS = "tests/broker/test_hanging_checks.py"
ASKED = "tests/broker/test_asked_markers.py"

MUTANTS = (
    Mutant(
        "the marker of a client ends a part of a live transaction",
        "src/tidelog/broker/transactions/asked_markers.py::Verdicts.of",
        "        return of_client(marker, transaction, place, self._states[producer_id])\n",
        "        return marker\n",
        ASKED,
    ),
    Mutant(
        "the marker of a client ends the next transaction of its producer",
        "src/tidelog/broker/transactions/asked_markers.py::Verdicts.of",
        "        if before != now:\n",
        "        if False:\n",
        ASKED,
    ),
    Mutant(
        "a client may abort what its coordinator has committed",
        "src/tidelog/transactions/hanging.py::of_client",
        "    if verdict.marker.committed is not marker.committed:\n",
        "    if False:\n",
        f"{HANGING} {ASKED}",
    ),
    Mutant(
        "a coordinator that is deposed while it is asked says how a transaction ended",
        "src/tidelog/broker/transactions/hanging_checks.py::HangingChecks.states",
        "        if self._coordinators() != epochs:\n",
        "        if False:\n",
        CHECKS,
    ),
    Mutant(
        "the check of a busy partition has no end",
        "src/tidelog/broker/transactions/hanging_checks.py::HangingChecks._end",
        "            return verdict is Remains.OPEN\n",
        "            return verdict is Remains.OPEN and transaction_of(entry) == transaction\n",
        CHECKS,
    ),
    Mutant(
        "an id in doubt says how its transaction ended",
        "src/tidelog/broker/handlers/list_transactions.py::handle",
        "not led.error and not led.table.doubtful",
        "not led.error",
        CHECKS,
    ),
    Mutant(
        "what one coordinator does not know is aborted before all have answered",
        "src/tidelog/broker/transactions/hanging_checks.py::HangingChecks.states",
        "[0] < epoch for number",
        "[0] < -1 for number",
        CHECKS,
    ),
    Mutant(
        "a batch of the next transaction is ended with the one before",
        "src/tidelog/broker/transactions/hanging_checks.py::HangingChecks._end",
        "        if transaction_of(entry) != transaction:\n",
        "        if False:\n",
        CHECKS,
    ),
    Mutant(
        "an open transaction of other partitions keeps this one open",
        "src/tidelog/transactions/hanging.py::judge",
        "    if where in now.partitions:\n",
        "    if True:\n",
        f"{HANGING} {CHECKS}",
    ),
    Mutant(
        "a deposed coordinator says how a transaction ended",
        "src/tidelog/transactions/hanging.py::judge",
        "    if now.coordinator_epoch < transaction.coordinator_epoch:\n",
        "    if False:\n",
        HANGING,
    ),
    Mutant(
        "after a loss an id gets an epoch that may have been granted",
        "src/tidelog/transactions/rules.py::after_loss",
        "        producer_epoch=MAX_EPOCH,\n",
        "        producer_epoch=min(now.producer_epoch + 1, MAX_EPOCH),\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "after a loss a request of an id goes before its fence",
        "src/tidelog/transactions/table.py::TransactionTable._request",
        "        if entry.is_doubtful:\n            self._fence(entry, now_ms, out)\n"
        "        if entry.in_flight is not None or entry.is_doubtful:\n",
        "        if entry.in_flight is not None:\n",
        f"{TABLE} {RANDOM}",
    ),
    Mutant(
        "a fence after a loss is made again while its markers are on their way",
        "src/tidelog/transactions/rules.py::is_fenced",
        "now.state in _FENCED",
        "now.state in COMPLETE",
        f"{RULES} {TABLE} {LOST}",
    ),
    Mutant(
        "the debt of a loss goes before a decision of before it is carried out",
        "src/tidelog/transactions/table.py::TransactionTable.settle",
        "not rules.is_fenced(entry.known)",
        "rules.after_loss(entry.known, 0)",
        f"{TABLE} {LOST}",
    ),
    Mutant(
        "a load does not know that its log has lost records",
        "src/tidelog/broker/transactions/transaction_partition.py::TransactionPartition.before_loaded",
        "state.is_unclean_leader or state.has_debt",
        "False",
        LOST,
    ),
    Mutant(
        "a load keeps the oldest state of an id",
        "src/tidelog/broker/coordinator/newest_records.py::_note_record",
        "    newest[key] = value\n",
        "    newest.setdefault(key, value)\n",
        f"{NEWEST} {SHELL}",
    ),
    Mutant(
        "a load forgets that an id was removed",
        "src/tidelog/broker/coordinator/newest_records.py::_note_batch",
        "            newest.pop(record.key, None)\n",
        "            pass\n",
        NEWEST,
    ),
    Mutant(
        "a fenced producer aborts the open transaction of its successor",
        "src/tidelog/transactions/rules.py::why_refused",
        "        fenced = request.claimed not in accepted\n",
        "        fenced = request.claimed.producer_id != owner.producer_id\n",
        RULES,
    ),
    Mutant(
        "a transaction that passes its time-out does not fence its producer",
        "src/tidelog/transactions/rules.py::_fenced",
        "producer_epoch=min(now.producer_epoch + 1, MAX_EPOCH),",
        "",
        RULES,
    ),
    Mutant(
        "a new producer leaves the former one the right to repeat itself",
        "src/tidelog/transactions/rules.py::_initialize",
        "before, previous = request.claimed, NO_PRODUCER_ID",
        "before, previous = now.owner, NO_PRODUCER_ID",
        RULES,
    ),
    Mutant(
        "a partition is forgotten when another is added",
        "src/tidelog/transactions/rules.py::_add",
        "    together = {*before, *request.partitions}\n",
        "    together = {*before[1:], *request.partitions}\n",
        RULES,
    ),
    Mutant(
        "the other verdict is a success when the transaction is over",
        "src/tidelog/transactions/rules.py::_end",
        "    if now.state not in _AGREES[request.committed]:\n",
        "    if now.state not in _AGREES[True] + _AGREES[False]:\n",
        RULES,
    ),
    Mutant(
        "a request that changes nothing succeeds from memory",
        "src/tidelog/transactions/table.py::TransactionTable._request",
        "                answers = () if verdict.then_again else (Answer(pending, result),)\n",
        "                answers = () if verdict.then_again else (Answer(pending, result),)\n"
        "                if entry.known and verdict.known.transaction.state is (\n"
        "                    entry.known.transaction.state\n"
        "                ):\n"
        "                    out.answer(pending, result)\n"
        "                    return\n",
        f"{TABLE} {RANDOM}",
    ),
    Mutant(
        "a record that is late is taken back",
        "src/tidelog/transactions/table.py::TransactionTable.delayed",
        "        out = Collected(write.key)\n",
        "        out = Collected(write.key)\n        self._ids[write.key].in_flight = None\n",
        f"{TABLE} {RANDOM}",
    ),
    Mutant(
        "markers are sent before their decision is committed",
        "src/tidelog/transactions/table.py::TransactionTable._request",
        "                entry.in_flight = out.write(verdict.known, answers)\n",
        "                entry.in_flight = out.write(verdict.known, answers)\n"
        "                entry.known = verdict.known\n"
        "                for effect in _of_decision(entry):\n"
        "                    out.effect(effect)\n",
        f"{TABLE} {RANDOM}",
    ),
    Mutant(
        "a decision that a load finds is not carried out",
        "src/tidelog/transactions/table.py::TransactionTable.settle",
        "            decided += _of_decision(entry)\n",
        "",
        f"{TABLE} {RANDOM}",
    ),
    Mutant(
        "the end of a transaction that the log refused is not written again",
        "src/tidelog/transactions/table.py::TransactionTable.lost",
        "            entry.retry_at_ms = now_ms + limits.RETRY_MS\n",
        "            entry.retry_at_ms = None\n",
        f"{TABLE} {RANDOM}",
    ),
    Mutant(
        "an unreadable state is served as the one before it",
        "src/tidelog/transactions/table.py::TransactionTable.replay",
        "            if found.transactional_id is not None:\n",
        "            if found.transactional_id == '':\n",
        TABLE,
    ),
    Mutant(
        "a deposed coordinator's markers are still sent",
        "src/tidelog/broker/transactions/transaction_partition.py::TransactionPartition.close",
        "            markers.stop(self._shell.hosted.partition)\n",
        "            pass\n",
        SHELL,
    ),
    Mutant(
        "markers have the epoch in which the leadership began",
        "src/tidelog/broker/transactions/transaction_partition.py::TransactionPartition._send_one",
        "hosted.leader_epoch,",
        "self._shell.since,",
        SHELL,
    ),
    Mutant(
        "a marker that was given up may be delivered later",
        "src/tidelog/broker/transactions/marker_sender.py::_Other._connected",
        "            self._connection.forget_at_end()\n",
        "",
        "tests/broker/test_marker_sender.py",
    ),
    Mutant(
        "a load sets no deadlines",
        "src/tidelog/transactions/table.py::TransactionTable.settle",
        "            self._settle(entry, now_ms)\n",
        "",
        f"{TABLE} {SHELL}",
    ),
    Mutant(
        "a leader may take a batch of a transaction that is being ended",
        "src/tidelog/transactions/verifying.py::verified",
        "    if now.state in PREPARED or ends:\n",
        "    if now.state in PREPARED:\n",
        "tests/unit/transactions/test_verifying.py",
    ),
    Mutant(
        "partitions are added beside one that is not there",
        "src/tidelog/broker/handlers/add_partitions_to_txn.py::_add",
        "    if refused:\n",
        "    if len(refused) == len(asked):\n",
        REQUESTS,
    ),
    Mutant(
        "transactional ids are served while transactions are not offered",
        "src/tidelog/broker/handlers/init_producer_id.py::handle",
        " and broker.refused_transactions:",
        " and broker.refused_transactions is None:",
        REQUESTS,
    ),
    Mutant(
        "a broker that has just started refuses transactional ids for good",
        "src/tidelog/broker/handlers/find_coordinator.py::_find",
        " and not broker.refused_transactions:",
        " and broker.refused_transactions is None:",
        REQUESTS,
    ),
    Mutant(
        "transactions are offered by the level of a controller that is deposed",
        "src/tidelog/broker/handlers/update_configs.py::handle",
        "    if error is not ErrorCode.NONE:\n        return response(error_code=error)\n"
        "    if not leaves_room",
        "    broker.cluster_level.take(request.level)\n"
        "    if error is not ErrorCode.NONE:\n        return response(error_code=error)\n"
        "    if not leaves_room",
        "tests/broker/test_cluster_level.py",
    ),
    Mutant(
        "a coordinator loads while transactions are not offered",
        "src/tidelog/broker/transactions/transaction_coordinator.py::TransactionCoordinator.lead",
        "        if self._level.offers_transactions:\n",
        "        if hosted is not None:\n",
        SHELL,
    ),
    Mutant(
        "a coordinator goes on after transactions were offered",
        "src/tidelog/broker/transactions/transaction_coordinator.py"
        "::TransactionCoordinator._level_changed",
        "            self.coordinator.resign_all()\n",
        "            pass\n",
        SHELL,
    ),
    Mutant(
        "a client gives the topic of transactions its form",
        "src/tidelog/controller/handlers/create_topics.py::handle",
        "isinstance(asker, ForwardedClient) and asker.is_broker",
        "isinstance(asker, ForwardedClient)",
        "tests/broker/test_transactions_process.py",
    ),
    Mutant(
        "every marker commits",
        "src/tidelog/records/control_records.py::decode_marker",
        "    return EndMarker(found == COMMIT, epoch)\n",
        "    return EndMarker(True, epoch)\n",
        MARKERS,
    ),
)
