"""The messages of ACLs, SCRAM, quotas and SASL, byte for byte (KIP-140, KIP-152, KIP-290, KIP-368,
KIP-546, KIP-554).

Owns the bytes, written out by hand from the published protocol, and the messages that they mean:
for each API the versions in which the form changes.
"""

from __future__ import annotations

from tests.wire.golden_bytes import Golden
from tidelog.protocol import messages as m

CREATE = m.CreateAclsRequest
CREATED = m.CreateAclsResponse
DELETE = m.DeleteAclsRequest
DELETED = m.DeleteAclsResponse
LIST = m.DescribeAclsRequest
LISTED = m.DescribeAclsResponse
SCRAM = m.AlterUserScramCredentialsRequest
SCRAMMED = m.AlterUserScramCredentialsResponse
USERS = m.DescribeUserScramCredentialsRequest
USERS_SAID = m.DescribeUserScramCredentialsResponse
QUOTA = m.AlterClientQuotasRequest
QUOTAS_SET = m.AlterClientQuotasResponse
QUOTAS = m.DescribeClientQuotasRequest
QUOTAS_SAID = m.DescribeClientQuotasResponse

ALICE, ALICE_HEX = "User:al", "557365723a616c"

FILTER = LIST(
    resource_type_filter=2,
    resource_name_filter="to",
    pattern_type_filter=4,
    principal_filter=ALICE,
    host_filter="h",
    operation=5,
    permission_type=6,
)
FOUND = LISTED(
    throttle_time_ms=1,
    error_code=54,
    error_message="no",
    resources=[LISTED.DescribeAclsResource(2, "to", 4, [LISTED.AclDescription(ALICE, "h", 5, 6)])],
)
ADDED = CREATE([CREATE.AclCreation(2, "to", 4, ALICE, "h", 5, 6)])
ADDED_SAID = CREATED(1, [CREATED.AclCreationResult(54, "no")])
REMOVED = DELETE([DELETE.DeleteAclsFilter(2, "to", 4, ALICE, "h", 5, 6)])
REMOVED_SAID = DELETED(
    1,
    [
        DELETED.DeleteAclsFilterResult(
            54, "no", [DELETED.DeleteAclsMatchingAcl(55, "on", 2, "to", 4, ALICE, "h", 5, 6)]
        )
    ],
)
QUOTA_SET = QUOTA(
    [
        QUOTA.EntryData(
            [QUOTA.EntityData("user", "al"), QUOTA.EntityData("ip", None)],
            [QUOTA.OpData("rate", 1.5, True)],
        )
    ],
    True,
)
QUOTA_SET_SAID = QUOTAS_SET(
    1, [QUOTAS_SET.EntryData(54, "no", [QUOTAS_SET.EntityData("user", "al")])]
)
QUOTAS_ASKED = QUOTAS([QUOTAS.ComponentData("user", 1, "al")], True)
QUOTAS_FOUND = QUOTAS_SAID(
    1,
    54,
    "no",
    [
        QUOTAS_SAID.EntryData(
            [QUOTAS_SAID.EntityData("user", "al")], [QUOTAS_SAID.ValueData("rate", -2.0)]
        )
    ],
)

ACLS = (
    Golden(29, 1, FILTER, f"02 0002 746f 04  0007 {ALICE_HEX}  0001 68  05 06"),
    Golden(29, 3, FILTER, f"02 03 746f 04  08 {ALICE_HEX}  02 68  05 06 00"),
    Golden(29, 1, LIST(1, None, 1, None, None, 1, 1), "01 ffff 01 ffff ffff 01 01"),
    Golden(29, 2, LIST(1, None, 1, None, None, 1, 1), "01 00 01 00 00 01 01 00"),
    Golden(
        29,
        1,
        FOUND,
        f"""
        00000001 0036 0002 6e6f
        00000001 02 0002 746f 04              # one resource
          00000001 0007 {ALICE_HEX} 0001 68 05 06
        """,
    ),
    Golden(
        29,
        3,
        FOUND,
        f"""
        00000001 0036 03 6e6f
        02 02 03 746f 04                      # one resource
          02 08 {ALICE_HEX} 02 68 05 06 00
          00
        00
        """,
    ),
    Golden(30, 1, ADDED, f"00000001 02 0002 746f 04 0007 {ALICE_HEX} 0001 68 05 06"),
    Golden(30, 3, ADDED, f"02 02 03 746f 04 08 {ALICE_HEX} 02 68 05 06 00 00"),
    Golden(30, 1, ADDED_SAID, "00000001 00000001 0036 0002 6e6f"),
    Golden(30, 2, ADDED_SAID, "00000001 02 0036 03 6e6f 00 00"),
    Golden(31, 1, REMOVED, f"00000001 02 0002 746f 04 0007 {ALICE_HEX} 0001 68 05 06"),
    Golden(31, 3, REMOVED, f"02 02 03 746f 04 08 {ALICE_HEX} 02 68 05 06 00 00"),
    Golden(
        31,
        1,
        DELETE([DELETE.DeleteAclsFilter(1, None, 1, None, None, 1, 1)]),
        "00000001 01 ffff 01 ffff ffff 01 01",
    ),
    Golden(
        31,
        1,
        REMOVED_SAID,
        f"""
        00000001
        00000001 0036 0002 6e6f               # one filter
          00000001 0037 0002 6f6e             # one rule that it matched
            02 0002 746f 04  0007 {ALICE_HEX}  0001 68  05 06
        """,
    ),
    Golden(
        31,
        2,
        REMOVED_SAID,
        f"""
        00000001
        02 0036 03 6e6f                       # one filter
          02 0037 03 6f6e                     # one rule that it matched
            02 03 746f 04  08 {ALICE_HEX}  02 68  05 06
            00
          00
        00
        """,
    ),
)

SCRAMS = (
    Golden(50, 0, USERS([USERS.UserName("al")]), "02 03 616c 00 00"),
    Golden(50, 0, USERS(None), "00 00"),
    Golden(
        50,
        0,
        USERS_SAID(
            1,
            54,
            "no",
            [
                USERS_SAID.DescribeUserScramCredentialsResult(
                    "al", 55, "on", [USERS_SAID.CredentialInfo(2, 4096)]
                )
            ],
        ),
        """
        00000001 0036 03 6e6f
        02 03 616c 0037 03 6f6e               # one user
          02 02 00001000 00                   # SCRAM-SHA-512, iterations
          00
        00
        """,
    ),
    Golden(
        51,
        0,
        SCRAM(
            [SCRAM.ScramCredentialDeletion("bo", 1)],
            [SCRAM.ScramCredentialUpsertion("al", 2, 8192, b"salt", b"pw")],
        ),
        """
        02 03 626f 01 00                      # one deletion
        02 03 616c 02 00002000                # one user, mechanism, iterations
          05 73616c74 03 7077 00
        00
        """,
    ),
    Golden(
        51,
        0,
        SCRAMMED(1, [SCRAMMED.AlterUserScramCredentialsResult("al", 54, "no")]),
        "00000001 02 03 616c 0036 03 6e6f 00 00",
    ),
)

CLIENT_QUOTAS = (
    Golden(48, 0, QUOTAS_ASKED, "00000001 0004 75736572 01 0002 616c  01"),
    Golden(48, 1, QUOTAS_ASKED, "02 05 75736572 01 03 616c 00  01 00"),
    Golden(48, 0, QUOTAS([QUOTAS.ComponentData("ip", 2, None)]), "00000001 0002 6970 02 ffff 00"),
    Golden(
        48,
        0,
        QUOTAS_FOUND,
        """
        00000001 0036 0002 6e6f
        00000001                              # one entry
          00000001 0004 75736572 0002 616c
          00000001 0004 72617465 c000000000000000
        """,
    ),
    Golden(
        48,
        1,
        QUOTAS_FOUND,
        """
        00000001 0036 03 6e6f
        02                                    # one entry
          02 05 75736572 03 616c 00
          02 05 72617465 c000000000000000 00
          00
        00
        """,
    ),
    Golden(
        49,
        0,
        QUOTA_SET,
        """
        00000001                              # one entry
          00000002 0004 75736572 0002 616c  0002 6970 ffff
          00000001 0004 72617465 3ff8000000000000 01
        01                                    # validate only
        """,
    ),
    Golden(
        49,
        1,
        QUOTA_SET,
        """
        02                                    # one entry
          03 05 75736572 03 616c 00  03 6970 00 00
          02 05 72617465 3ff8000000000000 01 00
          00
        01 00                                 # validate only
        """,
    ),
    Golden(
        49, 0, QUOTA_SET_SAID, "00000001 00000001 0036 0002 6e6f 00000001 0004 75736572 0002 616c"
    ),
    Golden(49, 1, QUOTA_SET_SAID, "00000001 02 0036 03 6e6f 02 05 75736572 03 616c 00 00 00"),
)

SASL = (
    Golden(17, 1, m.SaslHandshakeRequest("PLAIN"), "0005 504c41494e"),
    Golden(17, 0, m.SaslHandshakeResponse(33, ["PLAIN"]), "0021 00000001 0005 504c41494e"),
    Golden(36, 0, m.SaslAuthenticateRequest(b"n,,"), "00000003 6e2c2c"),
    Golden(36, 2, m.SaslAuthenticateRequest(b"n,,"), "04 6e2c2c 00"),
    Golden(36, 0, m.SaslAuthenticateResponse(58, "no", b"ab"), "003a 0002 6e6f 00000002 6162"),
    Golden(
        36,
        1,
        m.SaslAuthenticateResponse(58, "no", b"ab", 60_000),
        "003a 0002 6e6f 00000002 6162 000000000000ea60",
    ),
    Golden(
        36,
        2,
        m.SaslAuthenticateResponse(58, "no", b"ab", 60_000),
        "003a 03 6e6f 03 6162 000000000000ea60 00",
    ),
)

SECURITY = (*ACLS, *SCRAMS, *CLIENT_QUOTAS, *SASL)
