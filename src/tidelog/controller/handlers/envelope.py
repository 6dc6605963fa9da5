"""Envelope v0: a broker forwards a client's request that only the controller can serve.

- The handler of the inner API serves the unpacked request; the inner response has the inner
  request's correlation id and version.
- Brokers forward only requests that clients may send to a controller: any other, or bytes that are
  no request, is INVALID_REQUEST; a version that is not served is UNSUPPORTED_VERSION.
- NOT_CONTROLLER is an error of the envelope, never of the inner response: while this controller
  stands by, and when it stepped down meanwhile, the outcome unknown. The broker then tries the next
  controller, as in Kafka.
- The inner request has the rights of the principal in the Envelope and none of the broker's
  (decision 0132): one out of its scope is CLUSTER_AUTHORIZATION_FAILED, with an audit line that
  names the client's address. A principal that cannot be read is PRINCIPAL_DESERIALIZATION_FAILURE,
  an address INVALID_REQUEST.
- Pipelined: a creation that waits for brokers must not delay the next request.
"""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import Any

from tidelog.controller.controller import Controller
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.principals import ANONYMOUS, PROCESS
from tidelog.network.forwarded import FORWARDED
from tidelog.network.forwarded_client import ForwardedClient
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import codec, messages, principal_data
from tidelog.protocol.record_fields import Malformed
from tidelog.runtime import pace

logger = logging.getLogger(__name__)

MOST_ADDRESS_BYTES = 255
"""Of a client's address as text; one of IPv6 with its interface has under 64."""


async def handle(
    controller: Controller, request: messages.EnvelopeRequest, context: RequestContext
) -> messages.EnvelopeResponse:
    response = messages.EnvelopeResponse
    frame = memoryview(bytes(request.request_data))
    try:
        header = codec.decode_request_header(frame)
        if header.api_key not in FORWARDED:
            return response(error_code=ErrorCode.INVALID_REQUEST)
        client = _client_of(request, context, FORWARDED[ApiKey(header.api_key)].scope)
        route = context.router.route(header.api_key, header.api_version, client.is_trusted)
        if route is None:
            return response(error_code=ErrorCode.UNSUPPORTED_VERSION)
        # A plan for thousands of partitions is one request: other tasks run meanwhile.
        parsing = codec.decode_request(header.api_key, header.api_version, frame, header.body)
        inner = await pace.run(parsing, controller.seams.clock)
    except codec.DecodeError as error:
        logger.warning(
            "an Envelope of %(address)s cannot be read: %(error)s",
            {"address": context.client_host, "error": error},
        )
        return response(error_code=ErrorCode.INVALID_REQUEST)
    except Malformed as error:
        logger.warning(
            "an Envelope of %(address)s names no client: %(error)s",
            {"address": context.client_host, "error": error},
        )
        return response(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    inner_context = RequestContext(
        client,
        header.api_version,
        header.correlation_id,
        header.client_id,
        client.principal,
        carrier=context.connection,
    )
    answer: Any = route.handle(controller, inner, inner_context)
    if isawaitable(answer):
        answer = await answer
    # Thousands of topics have thousands of results: other tasks run meanwhile.
    steps = codec.encode_response_in_steps(
        header.api_key, header.api_version, header.correlation_id, answer
    )
    chunks = await pace.run(steps, controller.seams.clock)
    return response(response_data=b"".join(chunks)[4:])


def _client_of(
    request: messages.EnvelopeRequest, context: RequestContext, scope: Scope
) -> ForwardedClient:
    """Return the sender of the inner request. Raises DecodeError for an address that is none, and
    Malformed for a principal."""
    host = bytes(request.client_host_address).decode("latin-1")
    if len(host) > MOST_ADDRESS_BYTES or not (host.isascii() and host.isprintable()):
        raise codec.DecodeError("the client's address is not readable text")
    if request.request_principal:
        principal = principal_data.decode(bytes(request.request_principal))
    else:
        # A broker of an earlier release. It has judged the scope, and names no clients.
        principal = ANONYMOUS if scope is Scope.CLIENT else PROCESS
    return ForwardedClient(context.connection, principal, host)


HANDLER = served(ApiKey.ENVELOPE, Scope.BROKER, handle, pipelined=True)
