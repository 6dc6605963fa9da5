"""EndTxn v0-4: commits or aborts a transaction (KIP-98).

- The response follows when the decision is durable; its markers are written after that.
- The same verdict again is a success once the markers are written and the end is in the log again
  (docs/decisions/0134); the other one is INVALID_TXN_STATE.
- v2+: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
- Versions from 5 on belong to the second part of KIP-890 and are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.transactions.answers import error_in
from tidelog.transactions.events import End, TransactionResult
from tidelog.transactions.state import IdAndEpoch

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def handle(broker: Broker, request: messages.EndTxnRequest, context: RequestContext) -> Any:
    """The response is sent now or later."""
    pending_response = PendingResponse()
    producer = IdAndEpoch(request.producer_id, request.producer_epoch)
    event = End(pending_response, producer, request.committed)
    broker.transactions.coordinator.decide(request.transactional_id, event)

    def respond(result: TransactionResult) -> messages.EndTxnResponse:
        code = error_in(ApiKey.END_TXN, context.version, result.error)
        return messages.EndTxnResponse(error_code=code)

    return pending_response.answer(respond)


HANDLER = Handler(ApiKey.END_TXN, Scope.CLIENT, handle, with_transactions=range(5))
