"""What tests share: real processes of every kind, and the tools that speak to them.

| open | for |
|---|---|
| `node.py`, `server.py`, `kafka.py` | a broker as a real process: tidelog, or Apache Kafka |
| `processes.py` | any child process; `wait_until`, free ports, CPU and memory from /proc |
| `java.py`, `java.lock` | the locked jars; Kafka's tools, warm in one JVM (`ToolRunner`) or alone |
| `clients.py` | the stock clients, each with `write` and `read`; topics that have leaders |
| `wire.py` | single requests byte for byte, broken batches |
| `log_files.py` | the batches in a node's segment files, read by a second reader |
| `acked_stream.py` | writers and a group with books, and the judge of them |
| `lone_broker.py`, `group_broker.py`, `controller_world.py`, `storage_logs.py` | one room alone |
| `run_all.py` | the parts of `make test` with their budgets of time |

`TIDELOG_TEST_TARGET=kafka pytest tests/cluster tests/chaos` runs the same tests against Apache
Kafka 4.3: a new test is tried there first.
"""
