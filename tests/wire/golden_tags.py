"""The tags of our own on published messages as bytes, written out by hand as ``golden_bytes`` is.

A tag that several versions have is written out in the lowest and in the highest of them.
"""

from __future__ import annotations

from tests.wire.golden_bytes import ID_A, ID_B, ID_C, A, B, C, Golden
from tidelog.protocol import messages as m
from tidelog.protocol.primitives import NO_UUID

ALTER = m.AlterIsrRequest
REGISTER = m.BrokerRegistrationRequest
BEAT = m.BrokerHeartbeatRequest
METADATA = m.MetadataResponse
ASKED = m.MetadataRequest
PRODUCE = m.ProduceRequest
FETCH = m.FetchRequest
OFFSETS = m.ListOffsetsRequest
ASK = m.OffsetForLeaderEpochRequest
GROW = m.CreatePartitionsRequest

PROCESSES = (
    Golden(
        56,
        0,
        ALTER(
            broker_id=1,
            broker_epoch=2,
            topics=[
                ALTER.TopicData(
                    topic_name="to",
                    partitions=[
                        ALTER.PartitionData(
                            partition_index=3,
                            leader_epoch=4,
                            new_isr=[5, 6],
                            isr_version=7,
                            broker_epochs=[8, 9],
                            unclean_handled=True,
                        )
                    ],
                    topic_id=A,
                )
            ],
        ),
        f"""
        00000001 0000000000000002
        02 03 746f
          02 00000003 00000004 03 00000005 00000006 00000007
            02 904e 11 03 0000000000000008 0000000000000009   # broker epochs of the ISR
               914e 01 01                     # the unclean election is handled
          01 934e 10 {ID_A}                   # topic id
        00
        """,
    ),
    Golden(
        62,
        0,
        REGISTER(
            broker_id=1,
            cluster_id="c",
            incarnation_id=B,
            listeners=[REGISTER.Listener("p", "h", 9092, 1)],
            features=[REGISTER.Feature("f", 1, 2)],
            rack=None,
            last_life_ended=2,
            highest_seen=REGISTER.HighestSeen(3, 4),
            inventory=[
                REGISTER.InventoryTopic(
                    topic_name="to",
                    topic_id=A,
                    partitions=[
                        REGISTER.InventoryPartition(
                            *(5, 6, 7, 8),
                            fences=[REGISTER.InventoryFence(9, 10, 1, 11)],
                            birth=REGISTER.InventoryBirth(12, 13),
                            record_epoch=6,
                            command=REGISTER.InventoryCommand(14, 15, 1, [1, 2]),
                        )
                    ],
                    configs=[REGISTER.InventoryConfig("c", "v")],
                )
            ],
            highest_level="1.5",
            directory_id=C,
            log_dirs=["/a", "/b"],
            cordoned_log_dirs=["/b"],
            broker_epoch=17,
        ),
        f"""
        00000001 02 63 {ID_B}
        02 02 70 02 68 2384 0001 00
        02 02 66 0001 0002 00
        00
        08
          904e 01 02                          # the last life ended cleanly
          914e 0d 00000003 0000000000000004 00  # controller epoch and store revision seen
          924e 7a                             # the inventory, 122 bytes
            02 03 746f {ID_A}
              02 00000005 00000006 00000007 0000000000000008
                                              # partition, its epoch, leader epoch, end
                04 904e 13 02 00000009 0000000a 01 000000000000000b 00
                                              # a fence: resize epoch, count, kind, offset
                   914e 0d 0000000c 000000000000000d 00  # birth epoch and offset
                   924e 04 00000006           # leader epoch of the last record
                   934e 16 0000000e 0000000f 00000001 03 00000001 00000002 00
                                              # leader epoch, ISR version, leader, ISR
              01 904e 06 02 02 63 02 76 00    # c=v
          934e 04 04 312e35                   # the highest level
          944e 10 {ID_C}                      # directory id
          954e 07 03 03 2f61 03 2f62          # log directories
          964e 04 02 03 2f62                  # those that the file cordons
          974e 08 0000000000000011            # the broker epoch that the process has
        """,
    ),
    Golden(
        62,
        0,
        m.BrokerRegistrationResponse(
            throttle_time_ms=1, error_code=2, broker_epoch=3, channel_key=A, heartbeat_ms=4
        ),
        f"00000001 0002 0000000000000003 02 904e 10 {ID_A} 914e 04 00000004",
    ),
    Golden(
        63,
        0,
        BEAT(
            broker_id=1,
            broker_epoch=2,
            current_metadata_offset=3,
            want_shut_down=True,
            failures=BEAT.Failures([A], [BEAT.DamagedReplica("to", B, 4)]),
            led_topics=[BEAT.LedTopic(C, 5, 6, [BEAT.ByteRate(7, 8)], ["ab", ""])],
        ),
        f"""
        00000001 0000000000000002 0000000000000003 00 01
        02 904e 2b                            # 43 bytes
          02 {ID_A}                           # failed directories
          02 03 746f {ID_B} 00000004 00       # damaged replicas
          00
        914e 38                               # 56 bytes
          02 {ID_C} 0000000000000005 0000000000000006  # a writer without a count, misplaced
            02 00000007 0000000000000008 00   # the byte rate of a partition
          01 904e 05 03 03 6162 01            # client ids of such writers, one of them empty
        """,
    ),
    Golden(
        63,
        0,
        BEAT(
            broker_id=1,
            broker_epoch=2,
            current_metadata_offset=3,
            failures=BEAT.Failures(
                [], [], [BEAT.Shortage("/d", "full", [BEAT.ShortTopic(C, [9])])]
            ),
        ),
        f"""
        00000001 0000000000000002 0000000000000003 00 00
        01 904e 27                            # 39 bytes
          01 01                               # no failed directory, no damaged replica
          01 904e 21                          # 33 bytes
            02 03 2f64 05 66756c6c            # a log directory without room, and why
              02 {ID_C} 02 00000009 00 00     # the partitions in it
        """,
    ),
    Golden(
        23,
        4,
        ASK(
            replica_id=1,
            topics=[
                ASK.OffsetForLeaderTopic(
                    topic="to", partitions=[ASK.OffsetForLeaderPartition(2, 3, 4)], topic_id=A
                )
            ],
        ),
        f"00000001 02 03 746f 02 00000002 00000003 00000004 00 01 934e 10 {ID_A} 00",
    ),
)

TOPICS = [
    METADATA.MetadataResponseTopic(
        name="to",
        topic_id=topic_id,
        partitions=[
            METADATA.MetadataResponsePartition(
                partition_index=2,
                leader_id=1,
                leader_epoch=3,
                replica_nodes=[1],
                isr_nodes=[1],
                partition_epoch=4,
                birth_epoch=5,
                birth_offset=6,
                retirement_epoch=7,
            )
        ],
        initial_partition_count=8,
        undeleted_partition_count=9,
        resize_epoch=10,
    )
    for topic_id in (NO_UUID, A)
]
PARTITION = """
    02 0000 00000002 00000001 00000003 02 00000001 02 00000001 01
      04 904e 04 00000004                     # partition epoch
         914e 04 00000005 924e 08 0000000000000006  # birth epoch and offset
         934e 04 00000007                     # retirement epoch
"""
COUNTS = "03 904e 04 00000008 914e 04 00000009 924e 04 0000000a  # counts, resize epoch"


def metadata(topic: METADATA.MetadataResponseTopic) -> METADATA:
    """Return an answer with one broker and one topic."""
    return METADATA(
        throttle_time_ms=1,
        brokers=[METADATA.MetadataResponseBroker(1, "h", 9092)],
        cluster_id="c",
        controller_id=1,
        topics=[topic],
        max_partition_epoch=11,
    )


def fetch(topic: FETCH.FetchTopic, replica: int = -1, broker_epoch: int = -1) -> FETCH:
    """Return a request for one topic."""
    return FETCH(
        replica_id=replica,
        max_wait_ms=2,
        min_bytes=3,
        max_bytes=4,
        isolation_level=1,
        session_id=5,
        session_epoch=6,
        topics=[topic],
        replica_broker_epoch=broker_epoch,
    )


FETCHED = [FETCH.FetchPartition(7, 8, 9, 10, 11, 12)]
STAMPED = [FETCH.FetchPartition(7, 8, 9, 10, 11, 12, 16)]
FETCH_HEAD = "00000002 00000003 00000004 01 00000005 00000006"
FETCH_PART = "02 00000007 00000008 0000000000000009 0000000a 000000000000000b 0000000c"

COMMITTED = m.OffsetFetchResponse
EXPIRING = COMMITTED.OffsetFetchResponsePartitions(3, 4, 5, "", 0, 6)

CLIENTS = (
    *(
        Golden(
            9,
            version,
            m.OffsetFetchRequest(
                groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup("ab", topics=None)],
                include_expiry=True,
            ),
            """
            02 03 6162 00 ffffffff 00 00 00   # all topics of a group
            01 904e 01 01                     # and when its offsets expire
            """,
        )
        for version in (9, 10)
    ),
    *(
        Golden(
            9,
            version,
            COMMITTED(
                groups=[
                    COMMITTED.OffsetFetchResponseGroup(
                        "ab", [COMMITTED.OffsetFetchResponseTopics(name, topic_id, [EXPIRING])]
                    )
                ]
            ),
            f"""
            00000000 02 03 6162
            02 {named} 02 00000003 0000000000000004 00000005 01 0000
            01 904e 08 0000000000000006       # when the offset expires
            00 0000 00 00
            """,
        )
        for version, name, topic_id, named in ((9, "to", NO_UUID, "03 746f"), (10, "", A, ID_A))
    ),
    *(
        Golden(
            3,
            version,
            ASKED(topics=None, include_counts=True),
            f"00 01 {flags} 01 904e 01 01",
        )
        for version, flags in ((9, "00 00"), (13, "00"))
    ),
    Golden(
        3,
        9,
        metadata(TOPICS[0]),
        f"""
        00000001 02 00000001 02 68 00002384 00 00 02 63 00000001
        02 0000 03 746f 00
          {PARTITION}
          80000000
          {COUNTS}
        80000000
        01 904e 04 0000000b                   # max partition epoch
        """,
    ),
    Golden(
        3,
        13,
        metadata(TOPICS[1]),
        f"""
        00000001 02 00000001 02 68 00002384 00 00 02 63 00000001
        02 0000 03 746f {ID_A} 00
          {PARTITION}
          80000000
          {COUNTS}
        0000 01 904e 04 0000000b              # no error, max partition epoch
        """,
    ),
    *(
        Golden(
            0,
            version,
            PRODUCE(
                acks=-1,
                timeout_ms=1,
                topic_data=[
                    PRODUCE.TopicProduceData(
                        name="to" if version < 13 else "",
                        topic_id=NO_UUID if version < 13 else A,
                        undeleted_partition_count=3,
                        resize_epoch=4,
                        partition_data=[PRODUCE.PartitionProduceData(2, b"abc", 5)],
                    )
                ],
            ),
            f"""
            00 ffff 00000001
            02 {"03 746f" if version < 13 else ID_A}
              02 00000002 04 616263 01 904e 04 00000005  # partition epoch
              02 904e 04 00000003 914e 04 00000004  # undeleted count, resize epoch
            00
            """,
        )
        for version in (9, 13)
    ),
    Golden(
        1,
        12,
        fetch(
            FETCH.FetchTopic(
                "to", partitions=STAMPED, undeleted_partition_count=13, resize_epoch=14
            )
        ),
        f"""
        ffffffff {FETCH_HEAD}
        02 03 746f {FETCH_PART} 01 904e 04 00000010
          02 904e 04 0000000d 914e 04 0000000e
        01 01 00
        """,
    ),
    Golden(
        1,
        17,
        fetch(FETCH.FetchTopic("", A, STAMPED, undeleted_partition_count=13, resize_epoch=14)),
        f"""
        {FETCH_HEAD}
        02 {ID_A} {FETCH_PART} 01 904e 04 00000010
          02 904e 04 0000000d 914e 04 0000000e
        01 01 00
        """,
    ),
    Golden(
        1,
        12,
        fetch(
            FETCH.FetchTopic("to", partitions=FETCHED, follower_topic_id=A),
            replica=1,
            broker_epoch=15,
        ),
        f"""
        00000001 {FETCH_HEAD}
        02 03 746f {FETCH_PART} 00
          01 934e 10 {ID_A}                   # a follower says the topic's id
        01 01 01 924e 08 000000000000000f     # and its broker epoch
        """,
    ),
    *(
        Golden(
            2,
            version,
            OFFSETS(
                replica_id=-1,
                isolation_level=1,
                topics=[
                    OFFSETS.ListOffsetsTopic(
                        name="to",
                        partitions=[OFFSETS.ListOffsetsPartition(2, 3, 4, 5)],
                        undeleted_partition_count=6,
                        resize_epoch=7,
                    )
                ],
                timeout_ms=8 if timeout else 0,
            ),
            f"""
            ffffffff 01
            02 03 746f
              02 00000002 00000003 0000000000000004 01 904e 04 00000005
              02 904e 04 00000006 914e 04 00000007
            {timeout} 00
            """,
        )
        for version, timeout in ((6, ""), (11, "00000008"))
    ),
    *(
        Golden(
            60,
            version,
            m.DescribeClusterRequest(endpoint_type=1, broker_id=2, own_cluster_id="c"),
            f"00 {'01' * version} 02 904e 04 00000002 914e 02 02 63",
        )
        for version in (0, 1)
    ),
    *(
        Golden(
            60,
            version,
            m.DescribeClusterResponse(
                throttle_time_ms=1, error_code=2, cluster_id="c", controller_id=3, founded_as="f"
            ),
            f"00000001 0002 00 {'01' * version} 02 63 00000003 01 80000000 01 904e 02 02 66",
        )
        for version in (0, 1)
    ),
    *(
        Golden(
            37,
            version,
            GROW(
                topics=[
                    GROW.CreatePartitionsTopic("to", 5, [GROW.CreatePartitionsAssignment([1])])
                ],
                timeout_ms=6,
                validate_only=True,
                force=True,
            ),
            "02 03 746f 00000005 02 02 00000001 00 00 00000006 01 01 904e 01 01",
        )
        for version in (2, 3)
    ),
)
