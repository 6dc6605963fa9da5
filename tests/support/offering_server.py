"""`tidelog` whose brokers offer transactions to clients.

No release does so before its level says it: until then a test of whole clusters runs this in the
place of tidelog's own main module (`TidelogNode.run_with`).
"""

from __future__ import annotations

from tidelog.broker import assembly, process
from tidelog.broker.broker import Broker

_assemble = assembly.assemble


def assemble(given: assembly.Given) -> Broker:
    """As ``assembly.assemble``, with transactions."""
    broker = _assemble(given)
    broker.offered_transactions = True
    return broker


process.assemble = assemble  # type: ignore[attr-defined]

if __name__ == "__main__":
    from tidelog.cli.main import main

    main()
