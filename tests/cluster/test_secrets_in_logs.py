"""Promise 32: no secret is in a log, of whichever process, at whichever level, right or wrong.

What is looked through is every file that the processes have written but the secret's own: logs,
stores, records.
"""

from __future__ import annotations

import asyncio
import stat
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.cluster import TidelogCluster
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.proofs import begin, proven, secret_in, step, write_secret
from tests.support.server import run_tidelog
from tests.support.up import Up
from tidelog.protocol.secret_exchange import NONCE_BYTES, client_code

pytestmark = pytest.mark.long(20)

WRONG, CHANGED = "a wrong secret of a stranger", "a changed secret of the cluster"
SECRET_FILE = "cluster.secret"


def forms_of(secrets: Iterable[bytes]) -> set[bytes]:
    """How each of them could stand somewhere: as it is, as Python shows it, in hexadecimal, base64.

    The two ends by themselves, too: half of a secret is too much.
    """
    found = set()
    for secret in secrets:
        for part in (secret, secret[: len(secret) // 2], secret[len(secret) // 2 :]):
            shown = repr(part)[2:-1].encode()
            coded = b64encode(part)[: len(part) // 3 * 4]
            found |= {part, shown, part.hex().encode(), coded}
    return found


def told_in(folder: Path, secrets: Iterable[bytes]) -> list[str]:
    """Which files below a folder have something of a secret."""
    forms = forms_of(secrets)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SECRET_FILE]
    assert len(files) > 5
    contents = {path: path.read_bytes() for path in files}
    return [str(path) for path, content in contents.items() if any(x in content for x in forms)]


async def prove_wrongly(port: int, secret: bytes) -> list[bytes]:
    """Have a process refuse wrong proofs; return the right ones, never to be logged either."""
    codes = []
    for guess in (WRONG.encode(), secret[:-1], secret + b"x"):
        peer = await Peer.connect(port)
        nonce, said = await begin(peer)
        theirs = said[:NONCE_BYTES]
        codes.append(client_code(secret, nonce, theirs))
        with pytest.raises(ConnectionError):
            await peer.ask(step(client_code(guess, nonce, theirs)), 2)
    # Whoever takes it for a password.
    for said in (secret, b"\0user\0" + secret):
        peer = await Peer.connect(port)
        await begin(peer)
        with pytest.raises(ConnectionError):
            await peer.ask(step(said), 2)
    (await proven(port, secret)).writer.close()
    return codes


def wrong_proofs(ports: Iterable[int], secret: bytes) -> list[bytes]:
    async def work() -> list[bytes]:
        return [code for port in ports for code in await prove_wrongly(port, secret)]

    return asyncio.run(work())


def asked_by_an_operator(bootstrap: str, folder: Path) -> list[str]:
    """What the command says that has a wrong secret, and the one that has the right one."""
    asked = ("doctor", "restored", "--bootstrap-server", bootstrap, "--cluster-secret-file")
    wrong = run_tidelog(*asked, str(write_secret(folder.parent / "wrong", WRONG)))
    right = run_tidelog(*asked, str(folder / SECRET_FILE))
    assert (wrong.returncode, right.returncode) == (1, 0), (wrong, right)
    assert "another cluster secret" in wrong.stderr
    return [wrong.stdout, wrong.stderr, right.stdout, right.stderr]


def test_no_secret_is_in_the_logs(tmp_path: Path) -> None:
    """All processes say all that they can: wrong proofs, a broker with another secret, a change."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = TidelogCluster(folder, 2)
    nodes = [cluster.controller, *cluster.brokers.values()]
    for node in nodes:
        node.run_with("tests.support.talkative_server", {})
    with cluster:
        secret = secret_in(cluster.secret)
        ports = [cluster.controller.controller_port, *(x.port for x in cluster.brokers.values())]
        codes = wrong_proofs(ports, secret)
        said = asked_by_an_operator(cluster.bootstrap, folder)
        last = cluster.brokers[2]
        last.program.stop()
        last.configure({"cluster.secret.file": write_secret(tmp_path / "other", WRONG)})
        last.launch()
        refused = "gave a wrong proof of the cluster secret"
        wait_until(lambda: refused in last.log.read_text(), DEADLINE_S, refused)
        last.kill()
        last.configure({"cluster.secret.file": cluster.secret})
        last.start()
        write_secret(folder, secret.decode(), CHANGED, WRONG)
        for line in ("has 3 lines", "holds 2 secrets now"):
            for node, port in zip(nodes, ports, strict=True):
                wait_until(lambda: is_said(node.log, line, port), DEADLINE_S, line)  # noqa: B023
            write_secret(folder, secret.decode(), CHANGED)
        for node in nodes:
            node.stop()
    logs = [node.log.read_text() for node in nodes]
    assert all("level=debug" in log for log in logs), "words for debugging are there, too"
    assert all("a wrong proof of the cluster secret" in log for log in logs)
    secrets = (secret, WRONG.encode(), CHANGED.encode(), *codes)
    assert told_in(folder, secrets) == []
    assert not any(form.decode(errors="replace") in "".join(said) for form in forms_of(secrets))


def is_said(log: Path, line: str, port: int) -> bool:
    """Whether a process says something of its secret's file, which it reads when it is asked."""

    async def ask() -> None:
        peer = await Peer.connect(port)
        await begin(peer)
        peer.writer.close()

    asyncio.run(ask())
    return line in log.read_text()


def test_no_secret_is_in_what_tidelog_up_writes(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with Up(folder, "--brokers", "2") as up:
        up.until_said("ready")
        path = folder / SECRET_FILE
        secret = secret_in(path)
        assert len(secret) == 64 and stat.S_IMODE(path.stat().st_mode) == 0o600
        found = up.cluster()
        ports = [each["port"] for role in ("brokers", "controllers") for each in found[role]]
        assert len(ports) == 3
        codes = wrong_proofs(ports, secret)
        said = asked_by_an_operator(found["bootstrap"], folder)
        assert up.program.stop() == 0
    logs = sorted(folder.glob("node-*.log"))
    assert len(logs) == 2
    assert all("a wrong proof of the cluster secret" in log.read_text() for log in logs)
    secrets = (secret, WRONG.encode(), *codes)
    written = "".join([*said, up.log.read_text()])
    assert told_in(folder, secrets) == []
    assert not any(form.decode(errors="replace") in written for form in forms_of(secrets))
