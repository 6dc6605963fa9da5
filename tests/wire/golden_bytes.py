"""Our own parts of the wire as bytes, written out by hand from docs/design/wire.md.

Owns the bytes and the messages that they mean; nothing here is computed from a schema file, so that
two codecs over one wrong schema do not agree with it. No value is a field's default, and neighbours
of one type differ: two that are swapped, or a tag of another number, change the bytes.

A tag is its number as a varint (10000 is ``904e``, 10001 ``914e``, and so on), the size of its
content, its content; a compact string or array has its length plus one in front; each struct of a
flexible version ends with the count of its tags.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from tidelog.protocol import messages as m

A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
C = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
ID_A = A.hex
ID_B = B.hex
ID_C = C.hex


class Golden(NamedTuple):
    """One message of an API in a version, and its body."""

    api_key: int
    version: int
    message: Any
    text: str
    """Hex digits; from a ``#`` on a line is a comment."""

    @property
    def body(self) -> bytes:
        return unhex(self.text)


def unhex(text: str) -> bytes:
    """Return the bytes that a text says, comments left out."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


# --- the keys of our own -------------------------------------------------------------------------

POSITION = m.ConsumerGroupPositionRequest
POSITIONS = m.ConsumerGroupPositionResponse
EPOCHS = m.PartitionLeaderEpochsForPartitionsRequest
EPOCHS_SAID = m.PartitionLeaderEpochsForPartitionsResponse
FENCES = m.DescribeFencesRequest
FENCES_SAID = m.DescribeFencesResponse
CONFIGS = m.UpdateConfigsRequest
TRUNCATED = m.ReportTruncationRequest
FENCED = m.ReportFencesRequest

PRIVATE = (
    Golden(
        10001,
        0,
        POSITION(
            group_id="gr",
            generation_id=0x01020304,
            member_id="me-1",
            topics=[POSITION.Topic("to", [POSITION.Partition(7, True, 0x1112131415161718)])],
        ),
        """
        03 6772  01020304  05 6d652d31      # group, generation, member
        02 03 746f
          02 00000007 01 1112131415161718 00  # partition, asks for the group's, has its own
          00
        00
        """,
    ),
    Golden(
        10001,
        0,
        POSITIONS(
            throttle_time_ms=10,
            topics=[
                POSITIONS.Topic("to", [POSITIONS.Partition(7, True, 0x1112131415161718, True)])
            ],
            error_code=25,
        ),
        """
        0000000a
        02 03 746f
          02 00000007 01 1112131415161718
            01 904e 01 01                     # the position was committed
          00
        0019 00
        """,
    ),
    Golden(
        10002,
        0,
        EPOCHS(topics=[EPOCHS.Topic("to", [3, 5])]),
        "02 03 746f 03 00000003 00000005 00 00",
    ),
    Golden(
        10002,
        0,
        EPOCHS_SAID(
            throttle_time_ms=9,
            topics=[
                EPOCHS_SAID.Topic(
                    "to", [EPOCHS_SAID.Partition(3, 6, [EPOCHS_SAID.LeaderEpochs(4, 33, 34)])]
                )
            ],
        ),
        """
        00000009
        02 03 746f
          02 00000003 0006
            02 00000004 00000021 00000022 00  # partition, after creation, before deletion
            00
          00
        00
        """,
    ),
    Golden(
        10003,
        0,
        m.OpenControlChannelRequest(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            channel_number=4,
            store_revision=5,
            channel_key=A,
        ),
        f"""
        00000001 00000002 0000000000000003    # controller, its epoch, broker epoch
        0000000000000004 0000000000000005     # channel, store revision
        01 904e 10 {ID_A}                     # channel key
        """,
    ),
    Golden(10003, 0, m.OpenControlChannelResponse(error_code=11), "000b 00"),
    Golden(
        10003,
        0,
        m.OpenControlChannelResponse(leaves_unreadable=True),
        "0000 01 90 4e 01 01",
    ),
    Golden(
        10004,
        0,
        FENCES(
            include_former=True,
            topics=[
                FENCES.Topic(
                    topic="to",
                    partitions=[FENCES.Partition(3, 4, True)],
                    undeleted_partition_count=5,
                    resize_epoch=6,
                )
            ],
        ),
        """
        01                                    # former incarnations, too
        02 03 746f
          02 00000003 00000004                # partition, partition epoch
            01 904e 01 01                     # it is closed
          02 904e 04 00000005 914e 04 00000006  # undeleted count, resize epoch
        00
        """,
    ),
    Golden(
        10004,
        0,
        FENCES_SAID(
            throttle_time_ms=9,
            topics=[
                FENCES_SAID.Topic(
                    topic="to",
                    partitions=[
                        FENCES_SAID.Partition(3, 6, 7, [FENCES_SAID.Fence(8, 9, 10, 1, 11)], 17)
                    ],
                    former=[FENCES_SAID.Former(12, 13, 14, 15, 16)],
                )
            ],
        ),
        """
        00000009
        02 03 746f
          02 00000003 0006 00000007           # partition, error, leader epoch
            02 00000008 00000009 000000000000000a 01 000000000000000b 00
                                              # resize epoch, count, offset, kind, end of the data
            01 904e 08 0000000000000011       # where it ends, closed
          02 0000000c 0000000d 000000000000000e 000000000000000f 00000010 00
                                              # partition, its epoch, ends, epoch of the removal
          00
        00
        """,
    ),
    Golden(
        10005,
        0,
        CONFIGS(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            store_revision=4,
            entities=[
                CONFIGS.Entity(2, "t", [CONFIGS.Config("c", "v"), CONFIGS.Config("d", None)])
            ],
            min_insync_replicas=2,
            level="1.6",
        ),
        """
        00000001 00000002 0000000000000003 0000000000000004
        02 02 02 74                           # type 2: a topic
          03 02 63 02 76 00  02 64 00 00      # c=v, d without a value
          00
        02 904e 04 00000002
          914e 04 04 312e36                   # level 1.6
        """,
    ),
    Golden(10005, 0, m.UpdateConfigsResponse(error_code=7), "0007 00"),
    Golden(10006, 0, m.DescribeConditionRequest(subjects=["ab", "c"]), "03 03 6162 02 63 00"),
    Golden(
        10006,
        0,
        m.DescribeConditionResponse(
            throttle_time_ms=1, error_code=2, error_message="m", condition="{}"
        ),
        "00000001 0002 02 6d 03 7b7d 00",
    ),
    Golden(
        10007,
        0,
        TRUNCATED(
            broker_id=1, broker_epoch=2, truncations=[TRUNCATED.Truncation(A, 3, 4, 5, [6, 7])]
        ),
        f"""
        00000001 0000000000000002
        02 {ID_A} 00000003
          0000000000000004 0000000000000005   # from, to
          03 00000006 00000007 00
        00
        """,
    ),
    Golden(
        10007,
        0,
        m.ReportTruncationResponse(throttle_time_ms=1, error_code=2),
        "00000001 0002 00",
    ),
    Golden(
        10008,
        0,
        FENCED(broker_id=1, broker_epoch=2, fences=[FENCED.Fence(A, 3, 4, 5, 6)]),
        f"""
        00000001 0000000000000002
        02 {ID_A} 00000003
          00000004 00000005 00000006 00       # partition epoch, leader epoch, resize epoch
        00
        """,
    ),
    Golden(10008, 0, m.ReportFencesResponse(throttle_time_ms=1, error_code=2), "00000001 0002 00"),
    Golden(
        10009,
        0,
        m.RestoredStoreRequest(accept=True, without_brokers=[1, 2], drop_unknown=["x"]),
        "01 03 00000001 00000002 01 904e 03 02 02 78",
    ),
    Golden(
        10009,
        0,
        m.RestoredStoreResponse(throttle_time_ms=1, error_code=2, error_message="m", report="{}"),
        "00000001 0002 02 6d 03 7b7d 00",
    ),
    Golden(
        10009,
        0,
        m.RestoredStoreResponse(report='{"x":1}'),
        "00000000 0000 00 08 7b2278223a317d 00",
    ),
)

# --- what the documents added to the commands of a controller ------------------------------------

LEAD = m.LeaderAndIsrRequest
LED = m.LeaderAndIsrResponse
STOP = m.StopReplicaRequest
STOPPED = m.StopReplicaResponse
UPDATE = m.UpdateMetadataRequest


def ordered(**more: Any) -> Any:
    """Return a partition of a LeaderAndIsr; the fields that released Kafka has are the same."""
    return LEAD.LeaderAndIsrPartitionState(
        partition_index=4,
        controller_epoch=5,
        leader=6,
        leader_epoch=7,
        isr=[6, 8],
        isr_version=9,
        replicas=[6, 10],
        **more,
    )


LIVE = [LEAD.LeaderAndIsrLiveLeader(broker_id=6, host_name="h", port=9092)]
ORDERED = """
    00000004 00000005 00000006 00000007       # partition, controller epoch, leader, leader epoch
    03 00000006 00000008  00000009  03 00000006 0000000a   # ISR, its version, replicas
"""

COMMANDS = (
    Golden(
        4,
        3,
        LEAD(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            topic_states=[
                LEAD.LeaderAndIsrTopicState(
                    topic_name="to", partition_states=[ordered(target_replicas=[11], is_new=True)]
                )
            ],
            live_leaders=LIVE,
        ),
        """
        00000001 00000002 0000000000000003
        00000001 0002 746f
          00000001
            00000004 00000005 00000006 00000007
            00000002 00000006 00000008  00000009  00000002 00000006 0000000a
            00000001 0000000b  01             # target replicas (KIP-455), is new
        00000001 00000006 0001 68 00002384
        """,
    ),
    Golden(
        4,
        3,
        LED(error_code=1, partition_errors=[LED.LeaderAndIsrPartitionError("to", 4, 6)]),
        "0001 00000001 0002 746f 00000004 0006",
    ),
    Golden(
        4,
        4,
        LEAD(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            topic_states=[
                LEAD.LeaderAndIsrTopicState(
                    topic_name="to",
                    partition_states=[ordered(is_new=True, is_unclean_leader=True, has_debt=True)],
                )
            ],
            live_leaders=LIVE,
        ),
        f"""
        00000001 00000002 0000000000000003
        02 03 746f
          02 {unhex(ORDERED).hex()}
            00 01                             # no target replicas, is new
            02 924e 01 01 934e 01 01          # is unclean leader (KIP-704), has a debt
          00
        02 00000006 02 68 00002384 00
        00
        """,
    ),
    Golden(
        4,
        4,
        LED(error_code=1, partition_errors=[LED.LeaderAndIsrPartitionError("to", 4, 6)]),
        "0001 02 03 746f 00000004 0006 00 00",
    ),
    Golden(
        4,
        5,
        LEAD(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            type=2,
            topic_states=[
                LEAD.LeaderAndIsrTopicState(
                    topic_name="to",
                    topic_id=A,
                    partition_states=[ordered(target_replicas=[11])],
                    migrated=True,
                )
            ],
            live_leaders=LIVE,
            unreadable_topics=["no"],
        ),
        f"""
        00000001 00000002 0000000000000003
        02                                    # FULL (KIP-516)
        02 03 746f {ID_A}
          02 {unhex(ORDERED).hex()} 02 0000000b 00
            00
          01 944e 01 01                       # migrated
        02 00000006 02 68 00002384 00
        01 954e 04 02 03 6e6f                 # unreadable topics
        """,
    ),
    *(
        Golden(
            4,
            version,
            LED(
                error_code=1,
                topics=[
                    LED.LeaderAndIsrTopicError(
                        A, [LED.LeaderAndIsrPartitionError(partition_index=4, error_code=6)]
                    )
                ],
            ),
            f"0001 02 {ID_A} 02 00000004 0006 00 00 00",
        )
        for version in (5, 6)
    ),
    Golden(
        4,
        6,
        LEAD(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            type=1,
            topic_states=[
                LEAD.LeaderAndIsrTopicState(
                    topic_name="to",
                    topic_id=A,
                    undeleted_partition_count=16,
                    resize_epoch=17,
                    partition_states=[
                        ordered(
                            target_replicas=[11],
                            is_new=True,
                            partition_epoch=18,
                            birth_epoch=19,
                            sealed=True,
                            start_offset=20,
                            is_unclean_leader=True,
                            has_debt=True,
                        )
                    ],
                    migrated=True,
                )
            ],
        ),
        f"""
        00000001 00000002 0000000000000003 01
        02 03 746f {ID_A} 00000010 00000011   # undeleted count, resize epoch (KIP-253)
          02 {unhex(ORDERED).hex()} 02 0000000b 01
            00000012 00000013 01 0000000000000014  # partition epoch, birth epoch, sealed, start
            02 924e 01 01 934e 01 01
          01 944e 01 01
        01
        00
        """,
    ),
    Golden(
        5,
        4,
        STOP(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            topic_states=[
                STOP.StopReplicaTopicState(
                    topic_name="to",
                    topic_id=A,
                    partition_states=[STOP.StopReplicaPartitionState(4, 5, True, 6)],
                )
            ],
        ),
        f"""
        00000001 00000002 0000000000000003
        02 03 746f {ID_A}
          02 00000004 00000005 01 00000006 00  # partition, leader epoch, delete, partition epoch
          00
        00
        """,
    ),
    Golden(
        5,
        4,
        STOPPED(
            error_code=1,
            partition_errors=[
                STOPPED.StopReplicaPartitionError(topic_id=A, partition_index=4, error_code=6)
            ],
        ),
        f"0001 02 {ID_A} 00000004 0006 00 00",
    ),
    Golden(
        6,
        8,
        UPDATE(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            max_partition_epoch=4,
            topic_states=[
                UPDATE.UpdateMetadataTopicState(
                    topic_name="to",
                    topic_id=A,
                    initial_partition_count=5,
                    undeleted_partition_count=6,
                    resize_epoch=7,
                    partition_states=[
                        UPDATE.UpdateMetadataPartitionState(
                            partition_index=8,
                            controller_epoch=9,
                            leader=10,
                            leader_epoch=11,
                            isr=[10, 12],
                            isr_version=13,
                            replicas=[10, 14],
                            offline_replicas=[14],
                            partition_epoch=15,
                            birth_epoch=16,
                            birth_offset=17,
                            retirement_epoch=18,
                            parent=19,
                            leader_epoch_after_creation=20,
                            survivor=21,
                            leader_epoch_before_deletion=22,
                        )
                    ],
                )
            ],
            live_brokers=[
                UPDATE.UpdateMetadataBroker(
                    id=10,
                    endpoints=[UPDATE.UpdateMetadataEndpoint(9092, "h", "l", 1)],
                    rack="r",
                )
            ],
            unreadable_topics=["no"],
        ),
        f"""
        00000001 00000002 0000000000000003
        00000004                              # max partition epoch
        02 03 746f {ID_A}
          00000005 00000006 00000007          # initial and undeleted count, resize epoch
          02
            00000008 00000009 0000000a 0000000b
            03 0000000a 0000000c  0000000d  03 0000000a 0000000e  02 0000000e
            0000000f                          # partition epoch
            00000010 0000000000000011         # birth epoch and offset
            00000012                          # retirement epoch
            00000013 00000014                 # parent, leader epoch after creation
            00000015 00000016                 # survivor, leader epoch before deletion
            00
          00
        02 0000000a 02 00002384 02 68 02 6c 0001 00 02 72 00
        01 904e 04 02 03 6e6f                 # unreadable topics
        """,
    ),
    Golden(
        6,
        7,
        UPDATE(controller_id=1, controller_epoch=2, broker_epoch=3, unreadable_topics=["no"]),
        """
        00000001 00000002 0000000000000003 01 01
        01 904e 04 02 03 6e6f                 # unreadable topics
        """,
    ),
    Golden(6, 8, m.UpdateMetadataResponse(error_code=7), "0007 00"),
)
