"""Envelope v0: a broker forwards a client's request that only the controller can serve.

- The handler of the inner API serves the unpacked request; the inner response has the inner
  request's correlation id and version.
- Brokers forward only requests that clients may send to a controller: any other, or bytes that are
  no request, is INVALID_REQUEST; a version that is not served is UNSUPPORTED_VERSION.
- NOT_CONTROLLER is an error of the envelope, never of the inner response: while this controller
  stands by, and when it stepped down meanwhile, the outcome unknown. The broker then tries the next
  controller, as in Kafka.
- It has the principal and the client's address, for permissions, which are still to come.
- Pipelined: a creation that waits for brokers must not delay the next request.
"""

from __future__ import annotations

import logging
from typing import Any

from tidelog.controller.controller import Controller
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.forwarded import FORWARDED
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import codec, messages
from tidelog.runtime import pace

logger = logging.getLogger(__name__)


async def handle(
    controller: Controller, request: messages.EnvelopeRequest, context: RequestContext
) -> messages.EnvelopeResponse:
    response = messages.EnvelopeResponse
    frame = memoryview(bytes(request.request_data))
    try:
        header = codec.decode_request_header(frame)
        if header.api_key not in FORWARDED:
            return response(error_code=ErrorCode.INVALID_REQUEST)
        route = context.router.route(header.api_key, header.api_version)
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
    inner_context = RequestContext(
        context.connection,
        header.api_version,
        header.correlation_id,
        header.client_id,
        context.principal,
        forwarded=True,
    )
    answer: Any = await route.handle(controller, inner, inner_context)
    # Thousands of topics have thousands of results: other tasks run meanwhile.
    steps = codec.encode_response_in_steps(
        header.api_key, header.api_version, header.correlation_id, answer
    )
    chunks = await pace.run(steps, controller.seams.clock)
    return response(response_data=b"".join(chunks)[4:])


HANDLER = served(ApiKey.ENVELOPE, Scope.BROKER, handle, pipelined=True)
