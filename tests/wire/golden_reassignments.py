"""AlterPartitionReassignments, ListPartitionReassignments (KIP-455) and AlterReplicaLogDirs
(KIP-113), byte for byte.

Owns the bytes, written out by hand from the published protocol, and the messages that they mean.
Null and empty lists differ in these messages: null cancels, an empty list is refused.
"""

from __future__ import annotations

from tests.wire.golden_bytes import Golden
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages as m

ALTER = m.AlterPartitionReassignmentsRequest
ALTERED = m.AlterPartitionReassignmentsResponse
DIRS = m.AlterReplicaLogDirsRequest
MOVED = m.AlterReplicaLogDirsResponse
LIST = m.ListPartitionReassignmentsRequest
LISTED = m.ListPartitionReassignmentsResponse

REASSIGNMENTS = (
    Golden(
        34,
        1,
        DIRS([DIRS.AlterReplicaLogDir("/d", [DIRS.AlterReplicaLogDirTopic("to", [2, 3])])]),
        """
        00000001 0002 2f64                    # one directory
          00000001 0002 746f                  # one topic
            00000002 00000002 00000003        # two partitions
        """,
    ),
    Golden(
        34,
        2,
        DIRS([DIRS.AlterReplicaLogDir("/d", [DIRS.AlterReplicaLogDirTopic("to", [2])])]),
        """
        02 03 2f64                            # one directory
          02 03 746f                          # one topic
            02 00000002                       # one partition
            00
          00
        00
        """,
    ),
    Golden(
        34,
        2,
        MOVED(
            throttle_time_ms=1,
            results=[
                MOVED.AlterReplicaLogDirTopicResult(
                    "to",
                    [MOVED.AlterReplicaLogDirPartitionResult(2, int(ErrorCode.LOG_DIR_NOT_FOUND))],
                )
            ],
        ),
        """
        00000001                              # throttled for a millisecond
        02 03 746f                            # one topic
          02 00000002 0039 00                 # one partition: 57
          00
        00
        """,
    ),
    Golden(
        45,
        0,
        ALTER(
            timeout_ms=1,
            topics=[
                ALTER.ReassignableTopic(
                    "to",
                    [
                        ALTER.ReassignablePartition(2, [3, 4]),
                        ALTER.ReassignablePartition(5, []),
                        ALTER.ReassignablePartition(6, None),
                    ],
                ),
                ALTER.ReassignableTopic("t", None),
            ],
        ),
        """
        00000001                              # timeout
        03                                    # two topics
        03 746f 04                            # three partitions
          00000002 03 00000003 00000004 00    # two replicas
          00000005 01 00                      # an empty list
          00000006 00 00                      # null: cancels
        00
        02 74 00 00                           # null partitions: cancels the moves of a topic
        00
        """,
    ),
    Golden(
        45,
        0,
        ALTER(timeout_ms=7, topics=None),
        "00000007 00 00                       # null topics: cancels all",
    ),
    Golden(
        45,
        0,
        ALTERED(
            throttle_time_ms=1,
            error_code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            error_message="no",
            responses=[
                ALTERED.ReassignableTopicResponse(
                    "to",
                    [
                        ALTERED.ReassignablePartitionResponse(2, 0, None),
                        ALTERED.ReassignablePartitionResponse(
                            3, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "bad"
                        ),
                    ],
                )
            ],
        ),
        """
        00000001 0055 03 6e6f                 # throttle, error 85, its sentence
        02 03 746f 03
          00000002 0000 00 00                 # no error, null
          00000003 0027 04 626164 00          # error 39
        00
        00
        """,
    ),
    Golden(
        46,
        0,
        LIST(
            timeout_ms=1,
            topics=[
                LIST.ListPartitionReassignmentsTopics("to", [2, 3]),
                LIST.ListPartitionReassignmentsTopics("t", None),
            ],
        ),
        """
        00000001 03
        03 746f 03 00000002 00000003 00
        02 74 00 00                           # null: all partitions of the topic
        00
        """,
    ),
    Golden(46, 0, LIST(timeout_ms=7, topics=None), "00000007 00 00   # null topics: all moves"),
    Golden(
        46,
        0,
        LISTED(
            throttle_time_ms=1,
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message="no",
            topics=[
                LISTED.OngoingTopicReassignment(
                    "to", [LISTED.OngoingPartitionReassignment(2, [3, 4, 5], [3, 4], [5])]
                )
            ],
        ),
        """
        00000001 0007 03 6e6f                 # throttle, error 7, its sentence
        02 03 746f 02 00000002
          04 00000003 00000004 00000005       # replicas
          03 00000003 00000004                # adding
          02 00000005                         # removing
          00
        00
        00
        """,
    ),
)
