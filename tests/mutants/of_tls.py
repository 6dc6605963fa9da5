"""Broken rules of TLS: what goes out unencrypted, what is let in, and what holds others up.

Each mutant names a function, a statement of it and what replaces it, and the tests that must find
it.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOCKETS = "tests/component/network/test_tls.py"
FILES = "tests/component/runtime/test_tls_files.py"

MUTANTS = (
    Mutant(
        "parts of files go out beside the encryption",
        "src/tidelog/network/sending.py::can_send_files",
        '    if transport.get_extra_info("ssl_object") is not None:\n        return False\n',
        "",
        SOCKETS,
    ),
    Mutant(
        "half handshakes have no bound",
        "src/tidelog/network/handshakes.py::Handshakes.begin",
        "        self._make_place()\n",
        "",
        SOCKETS,
    ),
    Mutant(
        "a handshake has no time limit",
        "src/tidelog/network/handshakes.py::Handshakes._late",
        "        session.abort()\n",
        "",
        SOCKETS,
    ),
    Mutant(
        "a certificate for which no rule stands is let in",
        "src/tidelog/runtime/tls_files.py::TlsFiles.principal",
        "        name = principal_mapping.mapped(self.configs.rules, subject)\n",
        "        name = principal_mapping.mapped(self.configs.rules, subject) or subject\n",
        SOCKETS,
    ),
    Mutant(
        "a name with control characters becomes a principal",
        "src/tidelog/runtime/tls_files.py::TlsFiles.principal",
        "        if not is_valid(principal):\n",
        "        if False:\n",
        SOCKETS,
    ),
    Mutant(
        "an authority that was removed stays trusted",
        "src/tidelog/runtime/tls_files.py::TlsFiles._paths",
        "(self.configs.keys, self.configs.trusted)",
        "(self.configs.keys,)",
        SOCKETS,
    ),
    Mutant(
        "a required certificate is only requested",
        "src/tidelog/runtime/tls_files.py::TlsFiles._load",
        "ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL",
        "ssl.CERT_OPTIONAL",
        SOCKETS,
    ),
    Mutant(
        "a client checks no name",
        "src/tidelog/runtime/tls_files.py::TlsFiles._load",
        "        client.check_hostname = self._checks_names\n",
        "        client.check_hostname = False\n",
        SOCKETS,
    ),
    Mutant(
        "a response is encrypted at once, whatever its client reads",
        "src/tidelog/network/tls.py::TlsTransport.encrypt",
        " and raw.get_write_buffer_size() <= self._high:\n",
        ":\n",
        SOCKETS,
    ),
    Mutant(
        "a peer may renegotiate",
        "src/tidelog/runtime/tls_files.py::TlsFiles._context",
        "        context.options |= ssl.OP_NO_RENEGOTIATION\n",
        "        context.options &= ~ssl.OP_NO_RENEGOTIATION\n",
        FILES,
    ),
)
