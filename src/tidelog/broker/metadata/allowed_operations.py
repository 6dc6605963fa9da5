"""Authorized operations of a client on a topic, a group or the cluster (KIP-430).

Owns the bit fields of responses. Which operations a kind of resource has: see `model.permissions`.
There is no authorizer, so every client may perform every operation, as in Kafka without one.
"""

from __future__ import annotations

from tidelog.model.permissions import SUPPORTED, AclResourceType, bits

NOT_ASKED = -(2**31)
"""The value of a field that the client did not request."""

OF_TOPIC = bits(SUPPORTED[AclResourceType.TOPIC])
OF_GROUP = bits(SUPPORTED[AclResourceType.GROUP])
OF_CLUSTER = bits(SUPPORTED[AclResourceType.CLUSTER])
