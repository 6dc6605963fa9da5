"""The client library: what the commands, the Spark source and the brokers' own requests use.

| module | owns |
|---|---|
| ``errors`` | the exceptions, ``ClientError`` first |
| ``connecting/`` | one connection: frames, versions, deadlines, the cluster secret |
| ``cluster``, ``metadata`` | bootstrap addresses, connections by broker, the metadata cache |
| ``leaders``, ``coordinators``, ``retries`` | requests by leader or coordinator, retries |
| ``offsets`` | ListOffsets and OffsetForLeaderEpoch |
| ``producing/`` | batching, partitioning, sequence numbers, retries of Produce |
| ``fetching/`` | prefetching, fetch sessions, truncation, batches as a reader sees them |
| ``groups/`` | membership, assignment, committed offsets |
| ``admin/`` | administrative requests, one file per subject |
| ``replicas/`` | comparison of the replicas of a partition |
| ``blocking`` | a thread with a loop, for callers without one |
"""
