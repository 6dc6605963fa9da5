"""The messages of transactions (KIP-98, KIP-360, KIP-447, KIP-664, KIP-890), byte for byte.

Owns the bytes, written out by hand from the published protocol, and the messages that they mean:
for each API the versions in which the form changes.
"""

from __future__ import annotations

from tests.wire.golden_bytes import Golden
from tidelog.protocol import messages as m

ADD = m.AddPartitionsToTxnRequest
ADDED = m.AddPartitionsToTxnResponse
MARK = m.WriteTxnMarkersRequest
MARKED = m.WriteTxnMarkersResponse
COMMIT = m.TxnOffsetCommitRequest
COMMITTED = m.TxnOffsetCommitResponse
DESCRIBED = m.DescribeTransactionsResponse
LISTED = m.ListTransactionsResponse

PRODUCER = "0102030405060708 0009             # producer id and epoch\n"
ID, EPOCH = 0x0102030405060708, 9

ADD_BEFORE_4 = ADD(
    v3_and_below_transactional_id="id",
    v3_and_below_producer_id=ID,
    v3_and_below_producer_epoch=EPOCH,
    v3_and_below_topics=[ADD.AddPartitionsToTxnTopic("to", [2, 3])],
)
ADDED_BEFORE_4 = ADDED(
    throttle_time_ms=1,
    results_by_topic_v3_and_below=[
        ADDED.AddPartitionsToTxnTopicResult("to", [ADDED.AddPartitionsToTxnPartitionResult(2, 51)])
    ],
)

TRANSACTIONS = (
    Golden(
        22,
        0,
        m.InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000),
        "0002 6964  0000ea60",
    ),
    Golden(
        22,
        5,
        m.InitProducerIdRequest(
            transactional_id="id",
            transaction_timeout_ms=60_000,
            producer_id=ID,
            producer_epoch=EPOCH,
        ),
        f"03 6964  0000ea60\n {PRODUCER} 00",
    ),
    Golden(
        22,
        5,
        m.InitProducerIdResponse(
            throttle_time_ms=1, error_code=90, producer_id=ID, producer_epoch=EPOCH
        ),
        f"00000001 005a\n {PRODUCER} 00",
    ),
    Golden(
        24,
        0,
        ADD_BEFORE_4,
        f"""
        0002 6964
        {PRODUCER}
        00000001 0002 746f                    # one topic
          00000002 00000002 00000003          # two partitions
        """,
    ),
    Golden(
        24,
        3,
        ADD_BEFORE_4,
        f"""
        03 6964
        {PRODUCER}
        02 03 746f                            # one topic
          03 00000002 00000003 00             # two partitions
        00
        """,
    ),
    Golden(
        24,
        4,
        ADD(
            transactions=[
                ADD.AddPartitionsToTxnTransaction(
                    "id", ID, EPOCH, True, [ADD.AddPartitionsToTxnTopic("to", [2])]
                )
            ]
        ),
        f"""
        02 03 6964                            # one transaction
        {PRODUCER}
          01                                  # verify only
          02 03 746f                          # one topic
            02 00000002                       # one partition
            00
          00
        00
        """,
    ),
    Golden(
        24,
        0,
        ADDED_BEFORE_4,
        """
        00000001
        00000001 0002 746f                    # one topic
          00000001 00000002 0033              # one partition: 51
        """,
    ),
    Golden(
        24,
        3,
        ADDED_BEFORE_4,
        """
        00000001
        02 03 746f                            # one topic
          02 00000002 0033 00                 # one partition: 51
          00
        00
        """,
    ),
    Golden(
        24,
        4,
        ADDED(
            throttle_time_ms=1,
            error_code=31,
            results_by_transaction=[
                ADDED.AddPartitionsToTxnResult(
                    "id",
                    [
                        ADDED.AddPartitionsToTxnTopicResult(
                            "to", [ADDED.AddPartitionsToTxnPartitionResult(2, 120)]
                        )
                    ],
                )
            ],
        ),
        """
        00000001 001f                         # an error for all
        02 03 6964                            # one transaction
          02 03 746f                          # one topic
            02 00000002 0078 00               # one partition: 120
            00
          00
        00
        """,
    ),
    Golden(
        25,
        0,
        m.AddOffsetsToTxnRequest(
            transactional_id="id", producer_id=ID, producer_epoch=EPOCH, group_id="gr"
        ),
        f"0002 6964\n {PRODUCER} 0002 6772",
    ),
    Golden(
        25,
        3,
        m.AddOffsetsToTxnRequest(
            transactional_id="id", producer_id=ID, producer_epoch=EPOCH, group_id="gr"
        ),
        f"03 6964\n {PRODUCER} 03 6772 00",
    ),
    Golden(25, 0, m.AddOffsetsToTxnResponse(throttle_time_ms=1, error_code=51), "00000001 0033"),
    Golden(25, 4, m.AddOffsetsToTxnResponse(throttle_time_ms=1, error_code=51), "00000001 0033 00"),
    Golden(
        26,
        0,
        m.EndTxnRequest(
            transactional_id="id", producer_id=ID, producer_epoch=EPOCH, committed=True
        ),
        f"0002 6964\n {PRODUCER} 01",
    ),
    Golden(
        26,
        4,
        m.EndTxnRequest(
            transactional_id="id", producer_id=ID, producer_epoch=EPOCH, committed=True
        ),
        f"03 6964\n {PRODUCER} 01 00",
    ),
    Golden(26, 0, m.EndTxnResponse(throttle_time_ms=1, error_code=48), "00000001 0030"),
    Golden(26, 4, m.EndTxnResponse(throttle_time_ms=1, error_code=48), "00000001 0030 00"),
    Golden(
        27,
        1,
        MARK(
            markers=[
                MARK.WritableTxnMarker(
                    ID, EPOCH, True, [MARK.WritableTxnMarkerTopic("to", [2, 3])], 7
                )
            ]
        ),
        f"""
        02                                    # one marker
        {PRODUCER}
          01                                  # commit
          02 03 746f                          # one topic
            03 00000002 00000003 00           # two partitions
          00000007                            # coordinator epoch
          00
        00
        """,
    ),
    Golden(
        27,
        1,
        MARKED(
            markers=[
                MARKED.WritableTxnMarkerResult(
                    ID,
                    [
                        MARKED.WritableTxnMarkerTopicResult(
                            "to", [MARKED.WritableTxnMarkerPartitionResult(2, 52)]
                        )
                    ],
                )
            ]
        ),
        """
        02 0102030405060708                   # one marker
          02 03 746f                          # one topic
            02 00000002 0034 00               # one partition: 52
            00
          00
        00
        """,
    ),
    Golden(
        28,
        0,
        COMMIT(
            transactional_id="id",
            group_id="gr",
            producer_id=ID,
            producer_epoch=EPOCH,
            topics=[
                COMMIT.TxnOffsetCommitRequestTopic(
                    "to", [COMMIT.TxnOffsetCommitRequestPartition(2, 5, -1, "m")]
                )
            ],
        ),
        f"""
        0002 6964  0002 6772
        {PRODUCER}
        00000001 0002 746f                    # one topic
          00000001                            # one partition
            00000002 0000000000000005 0001 6d # partition, offset, metadata
        """,
    ),
    Golden(
        28,
        2,
        COMMIT(
            transactional_id="id",
            group_id="gr",
            producer_id=ID,
            producer_epoch=EPOCH,
            topics=[
                COMMIT.TxnOffsetCommitRequestTopic(
                    "to", [COMMIT.TxnOffsetCommitRequestPartition(2, 5, 6, None)]
                )
            ],
        ),
        f"""
        0002 6964  0002 6772
        {PRODUCER}
        00000001 0002 746f                    # one topic
          00000001                            # one partition
            00000002 0000000000000005 00000006 ffff  # partition, offset, leader epoch, no metadata
        """,
    ),
    Golden(
        28,
        3,
        COMMIT(
            transactional_id="id",
            group_id="gr",
            producer_id=ID,
            producer_epoch=EPOCH,
            generation_id=4,
            member_id="me",
            group_instance_id="in",
            topics=[
                COMMIT.TxnOffsetCommitRequestTopic(
                    "to", [COMMIT.TxnOffsetCommitRequestPartition(2, 5, 6, "m")]
                )
            ],
        ),
        f"""
        03 6964  03 6772
        {PRODUCER}
        00000004 03 6d65 03 696e              # generation, member, instance
        02 03 746f                            # one topic
          02                                  # one partition
            00000002 0000000000000005 00000006 02 6d 00  # partition, offset, leader epoch, metadata
          00
        00
        """,
    ),
    Golden(
        28,
        3,
        COMMITTED(
            throttle_time_ms=1,
            topics=[
                COMMITTED.TxnOffsetCommitResponseTopic(
                    "to", [COMMITTED.TxnOffsetCommitResponsePartition(2, 22)]
                )
            ],
        ),
        """
        00000001
        02 03 746f                            # one topic
          02 00000002 0016 00                 # one partition: 22
          00
        00
        """,
    ),
    Golden(
        65, 0, m.DescribeTransactionsRequest(transactional_ids=["id", "x"]), "03 03 6964 02 78 00"
    ),
    Golden(
        65,
        0,
        DESCRIBED(
            throttle_time_ms=1,
            transaction_states=[
                DESCRIBED.TransactionState(
                    105, "id", "Ongoing", 60_000, 5, ID, EPOCH, [DESCRIBED.TopicData("to", [2])]
                )
            ],
        ),
        f"""
        00000001
        02 0069 03 6964                       # one transaction: 105, its id
          08 4f6e676f696e67                   # Ongoing
          0000ea60 0000000000000005           # time-out, start
        {PRODUCER}
          02 03 746f 02 00000002 00           # one topic, one partition
          00
        00
        """,
    ),
    Golden(
        66,
        1,
        m.ListTransactionsRequest(producer_id_filters=[ID], include_covered=True),
        """
        01 02 0102030405060708                # no state, one producer id
        ffffffffffffffff
        01 904e 01 01
        """,
    ),
    Golden(
        66,
        1,
        LISTED(covered=[LISTED.Covered(3, 5)]),
        """
        00000000 0000 01 01
        01 904e 0a 02 00000003 00000005 00    # a partition, its leader epoch
        """,
    ),
    Golden(
        66,
        2,
        m.ListTransactionsRequest(
            state_filters=["Empty"],
            producer_id_filters=[ID],
            duration_filter=5,
            transactional_id_pattern="i.*",
        ),
        """
        02 06 456d707479                      # one state
        02 0102030405060708                   # one producer id
        0000000000000005 04 692e2a            # duration, pattern
        00
        """,
    ),
    Golden(
        66,
        2,
        LISTED(
            throttle_time_ms=1,
            error_code=14,
            unknown_state_filters=["x"],
            transaction_states=[LISTED.TransactionState("id", ID, "Empty")],
        ),
        """
        00000001 000e
        02 02 78                              # one unknown filter
        02 03 6964 0102030405060708 06 456d707479 00
        00
        """,
    ),
)
