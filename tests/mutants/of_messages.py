"""Broken rules of the wire, of connections, of groups and of the client."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEMAS = "src/tidelog/protocol/schemas"
GOLDEN = "tests/wire/test_golden_bytes.py"

REFUSALS = "tests/wire/test_golden_refusals.py"

MUTANTS = (
    Mutant(
        "T11: the unclean flag of LeaderAndIsr has another tag",
        f"{SCHEMAS}/leader_and_isr.txt",
        "    is_unclean_leader: bool [4+] tag 10002\n",
        "    is_unclean_leader: bool [4+] tag 10009\n",
        GOLDEN,
    ),
    Mutant(
        "T11: two fields of LeaderAndIsr v6 stand in each other's place",
        f"{SCHEMAS}/leader_and_isr.txt",
        "    partition_epoch: int32 [6+] = -1\n    birth_epoch: int32 [6+]\n",
        "    birth_epoch: int32 [6+]\n    partition_epoch: int32 [6+] = -1\n",
        GOLDEN,
    ),
    Mutant(
        "channel number and store revision stand in each other's place",
        f"{SCHEMAS}/open_control_channel.txt",
        "    channel_number: int64\n    store_revision: int64\n",
        "    store_revision: int64\n    channel_number: int64\n",
        GOLDEN,
    ),
    Mutant(
        "a follower tells the id of its topic in another tag",
        f"{SCHEMAS}/fetch.txt",
        "        follower_topic_id: uuid [12] tag 10003\n",
        "        follower_topic_id: uuid [12] tag 10002\n",
        GOLDEN,
    ),
    Mutant(
        "clients receive the counts of a topic from Metadata v12 on only",
        f"{SCHEMAS}/metadata.txt",
        "        undeleted_partition_count: int32 [9+] tag 10001 = -1\n",
        "        undeleted_partition_count: int32 [12+] tag 10001 = -1\n",
        GOLDEN,
    ),
    Mutant(
        "Fetch by id serves the records of the topic that has the name now",
        "src/tidelog/broker/fetching/topic_ids.py::find_by_id",
        "    return partition if wanted.is_of(partition) else ErrorCode.UNKNOWN_TOPIC_ID\n",
        "    return partition\n",
        "tests/broker/test_topic_ids.py tests/unit/broker/test_fetch_fast_path.py",
    ),
    Mutant(
        "the fast path of Fetch looks at the name of a topic alone",
        "src/tidelog/broker/fetching/fetch_fast_path.py::_parts",
        "        if one.by_id and not one.is_of(partition):\n",
        "        if False:\n",
        "tests/unit/broker/test_fetch_fast_path.py",
    ),
    Mutant(
        "a fetch session takes names and ids of topics",
        "src/tidelog/broker/fetching/client_sessions.py::FetchSessions.plan",
        "        if session.by_id is not by_id:\n",
        "        if False:\n",
        "tests/broker/test_topic_ids.py",
    ),
    Mutant(
        "Produce by id appends to the topic that has the name now",
        "src/tidelog/broker/handlers/produce.py::_Appending.serve",
        "(partition is None or partition.topic_id == topic.topic_id)",
        "True",
        "tests/broker/test_topic_ids.py",
    ),
    Mutant(
        "the fast path of Produce looks at the name of a topic alone",
        "src/tidelog/broker/partitions/produce_fast_path.py::answer",
        "    if by_id and partition.topic_id != topic_id:\n",
        "    if False:\n",
        "tests/broker/test_topic_ids.py",
    ),
    Mutant(
        "a long commit by id goes on in the next incarnation of its topic",
        "src/tidelog/broker/handlers/offset_commit.py::_known",
        "                or (by_id and listed.topic_id != topic.topic_id)\n",
        "",
        "tests/wire/test_groups_topic_incarnations.py",
    ),
    Mutant(
        "every client receives the tags of Metadata",
        "src/tidelog/broker/handlers/metadata.py::_answer",
        "    tagged = request.include_counts or context.connection.is_tidelog\n",
        "    tagged = True\n",
        "tests/broker/test_metadata.py",
    ),
    Mutant(
        "a client of ours from before the question receives no counts",
        "src/tidelog/broker/handlers/metadata.py::_answer",
        "    tagged = request.include_counts or context.connection.is_tidelog\n",
        "    tagged = request.include_counts\n",
        "tests/broker/test_metadata.py",
    ),
    Mutant(
        "both sides prove the secret by the same word",
        "src/tidelog/protocol/secret_exchange.py",
        '_SERVER, _CLIENT = b"server", b"client"\n',
        '_SERVER, _CLIENT = b"server", b"server"\n',
        f"{GOLDEN} tests/component/runtime/test_cluster_secret.py",
    ),
    Mutant(
        "tagged fields are written in no order",
        "src/tidelog/protocol/compiler.py::_Code.present",
        "        return sorted(found, key=lambda f: f.tag or 0) if tagged else found\n",
        "        return found[::-1] if tagged else found\n",
        "tests/wire/test_codec_against_reference.py",
    ),
    Mutant(
        "a message may have more elements than it may",
        "src/tidelog/protocol/compiler.py::_decode_array",
        '    code.put(depth, f"if budget < 0: raise too_many(',
        '    code.put(depth, f"if False: raise too_many(',
        "tests/component/network/test_steps.py",
    ),
    Mutant(
        "a varint of more than 32 bits is taken",
        "src/tidelog/protocol/primitives.py::read_uvarint",
        "            if value > 0xFFFFFFFF:\n                break\n",
        "",
        "tests/wire/test_codec_hostile.py::test_a_varint_has_32_bits",
    ),
    Mutant(
        "bytes after a message are ignored",
        "src/tidelog/protocol/codec.py::check_end",
        "    if stop != len(frame) and api_key != ApiKey.METADATA:\n",
        "    if False:\n",
        "tests/wire/test_codec_hostile.py",
    ),
    Mutant(
        "a connection without a proof may name a replica",
        "src/tidelog/network/router.py::RequestContext.may_name_replica",
        "        if replica_id < 0 or self.connection.is_trusted:\n",
        "        if True:\n",
        "tests/wire/test_authorization_table.py",
    ),
    Mutant(
        "a request may be larger than socket.request.max.bytes",
        "src/tidelog/network/receiving.py::Receiver._run",
        "size < frames.MIN_REQUEST_BYTES or size > most:",
        "size < frames.MIN_REQUEST_BYTES:",
        "tests/component/network/test_server.py",
    ),
    Mutant(
        "a commit of another generation is taken",
        "src/tidelog/groups/offsets.py::_why_no_commit",
        "    if event.generation != group.generation:\n        return",
        "    if False:\n        return",
        "tests/unit/groups/test_offsets.py tests/unit/groups/test_group_random.py",
    ),
    Mutant(
        "a commit is accepted during a rebalance",
        "src/tidelog/groups/offsets.py::_why_no_commit",
        "    if group.state is GroupState.COMPLETING_REBALANCE:\n",
        "    if False:\n",
        "tests/unit/groups/test_offsets.py",
    ),
    Mutant(
        "a heartbeat does not say that the group rebalances",
        "src/tidelog/groups/leaving.py::heartbeat",
        "        if group.state is GroupState.PREPARING_REBALANCE:\n",
        "        if False:\n",
        "tests/unit/groups/test_group.py",
    ),
    Mutant(
        "an id that was never used makes the group rebalance when it leaves",
        "src/tidelog/groups/leaving.py::leave",
        "    if gone and not any_member:\n",
        "    if False:\n",
        "tests/unit/groups/test_group.py",
    ),
    Mutant(
        "a client goes back to metadata of an older leader epoch",
        "src/tidelog/client/metadata.py::_newest",
        "            and other.leader_epoch > partition.leader_epoch >= 0\n",
        "            and False\n",
        "tests/unit/client/test_metadata.py",
    ),
    Mutant(
        "a reader does not ask a new leader whether it has what was read",
        "src/tidelog/client/fetching/truncation.py::must_ask",
        "    return 0 <= epoch < leader_epoch != asked_in\n",
        "    return False\n",
        "tests/unit/client/test_truncation.py",
    ),
    Mutant(
        "a log that was cut is not noticed",
        "src/tidelog/client/fetching/truncation.py::was_cut",
        "    return 0 <= end.end_offset < offset\n",
        "    return False\n",
        "tests/unit/client/test_truncation.py",
    ),
    Mutant(
        "keys go to other partitions than those of stock clients",
        "src/tidelog/partitioning/hashing.py",
        "_POSITIVE = 0x7FFFFFFF\n",
        "_POSITIVE = 0x3FFFFFFF\n",
        "tests/unit/partitioning/test_hashing.py",
    ),
    Mutant(
        "what followers ask has no limit for clients, either",
        "src/tidelog/network/router.py::Router.route",
        "(trusted and handler.api_key in FOLLOWERS)",
        "(handler.api_key in FOLLOWERS)",
        "tests/component/network/test_scope.py",
    ),
    Mutant(
        "members that send a new coordinator no heartbeat stay for ever",
        "src/tidelog/groups/replay.py::restore",
        "        group.add(member)\n        group.touch(member, now_ms)\n",
        "        group.add(member)\n",
        "tests/unit/groups/test_group.py",
    ),
    Mutant(
        "the shares of a former generation are given out in the next one",
        "src/tidelog/groups/syncing.py::assignment_stored",
        "    if group.state is not GroupState.COMPLETING_REBALANCE "
        "or group.generation != generation:\n"
        "        return\n"
        "    group.enter",
        "    if group.state is not GroupState.COMPLETING_REBALANCE:\n"
        "        return\n"
        "    group.enter",
        "tests/unit/groups/test_group.py",
    ),
    Mutant(
        "batches of one size are read alike by half of their lengths",
        "src/tidelog/pipeline/decoding/starts.py::_has_pattern",
        "    if len(second):\n"
        "        same &= (view[second[None, :] + shifts] == view[second][None, :]).all(axis=1)\n",
        "",
        "tests/unit/pipeline/test_chunks.py",
    ),
    Mutant(
        "a time without a zone is that of the machine",
        "src/tidelog/cli/reset_plan.py::parse_datetime_ms",
        "    if moment.tzinfo is None:\n        moment = moment.replace(tzinfo=UTC)\n",
        "",
        "tests/unit/cli/test_reset_plan.py",
    ),
    Mutant(
        "a receive buffer is widened while memory is short",
        "src/tidelog/network/buffer.py::ReceiveBuffer._widen",
        "            if not self._account.is_short_of(capacity):\n",
        "            if True:\n",
        "tests/unit/network/test_buffer.py",
    ),
    Mutant(
        "a begun frame keeps a wide buffer for which another waits",
        "src/tidelog/network/buffer.py::ReceiveBuffer.make_room",
        "        if self.held and self._account.contended:\n            self._shrink_to(need)\n",
        "",
        "tests/unit/network/test_buffer.py",
    ),
    Mutant(
        "a refusal leaves the elements without an error that have a sentence of their own",
        "src/tidelog/protocol/refusals.py::_Pair.level",
        "        error = ERROR in fields and (sentence or not said)\n",
        "        error = ERROR in fields and not said\n",
        REFUSALS,
    ),
    Mutant(
        "a refusal repeats what the request says of its elements",
        "src/tidelog/protocol/refusals.py::_Pair.same",
        "not x.array and x.default is None and x.name != ERROR",
        "not x.array and x.name != ERROR",
        REFUSALS,
    ),
    Mutant(
        "a request is refused by a response that says that there are no brokers",
        "src/tidelog/protocol/refusals.py::_top",
        "level if level.lists and answered.issuperset(more) else None",
        "level if level.lists else None",
        f"{REFUSALS} tests/component/network/test_scope.py",
    ),
    Mutant(
        "a session takes its next request while it applies one",
        "src/tidelog/broker/fetching/session_rules.py::why_not_next",
        "    if session.epoch != epoch or epoch == UNUSABLE:\n",
        "    if session.epoch != epoch:\n",
        "tests/unit/broker/test_session_rules.py",
    ),
)
