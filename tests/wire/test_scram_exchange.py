"""SCRAM-SHA-256 and -512: the published example, scramp and kafka-python on the other side, and
messages that are malformed, of another exchange, or sent again.
"""

from __future__ import annotations

import base64
import random
import string
import time
from collections.abc import Callable

import pytest
import scramp
from kafka.net.sasl.scram import ScramClient as KafkaPythonClient

from tests.support.drawn_seed import drawn_seed
from tidelog.protocol.scram_exchange import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    MOST_ITERATIONS_ASKED,
    MOST_MESSAGE_BYTES,
    SHA_256,
    SHA_512,
    ClientExchange,
    Credential,
    Mechanism,
    ScramFailure,
    ServerExchange,
    credential_of,
    decoy,
    from_text,
    salted_password,
    to_text,
    why_not_iterations,
)

NAME, PASSWORD, SALT = "user", "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_7677 = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
"""The example of RFC 7677, section 3."""

both = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=list(MECHANISMS))


def stored(
    mechanism: Mechanism = SHA_256, password: str = PASSWORD, iterations: int = MIN_ITERATIONS
) -> Credential:
    salted = salted_password(mechanism, password, SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


def begun(mechanism: Mechanism = SHA_256) -> ServerExchange:
    """A server that has sent its challenge to the user of the example."""
    server = ServerExchange(mechanism)
    server.read_first(RFC_7677[0])
    server.challenge(stored(mechanism), SERVER_NONCE)
    return server


def exchanged(mechanism: Mechanism, name: str, password: str, credential: Credential) -> str:
    """Run both sides of ours; return whose name was proved."""
    client, server = ClientExchange(mechanism, name, CLIENT_NONCE), ServerExchange(mechanism)
    assert server.read_first(client.first()) == name
    asked = client.challenged(server.challenge(credential, SERVER_NONCE))
    assert not client.done and not server.done
    salted = salted_password(mechanism, password, asked.salt, asked.iterations)
    answer = client.answer(salted)
    assert not client.done
    client.verify(server.final(answer))
    assert client.done and server.done
    return server.name


def test_the_example_of_the_rfc() -> None:
    server, client = ServerExchange(SHA_256), ClientExchange(SHA_256, NAME, CLIENT_NONCE)
    assert client.first() == RFC_7677[0]
    assert server.read_first(RFC_7677[0]) == NAME
    assert server.challenge(stored(), SERVER_NONCE) == RFC_7677[1]
    asked = client.challenged(RFC_7677[1])
    assert client.answer(salted_password(SHA_256, PASSWORD, *asked)) == RFC_7677[2]
    assert server.final(RFC_7677[2]) == RFC_7677[3]
    client.verify(RFC_7677[3])
    assert server.done and client.done


@both
@pytest.mark.parametrize("name", ["a", "a=b,c", "=2C", "=3D2C,", "\u00e4\u4e2d", "x" * 1000])
def test_names_and_passwords_arrive(mechanism: Mechanism, name: str) -> None:
    for password in ("", "pencil", "a,b=c", "\u00e4 \u4e2d", "x" * 1000):
        found = exchanged(mechanism, name, password, stored(mechanism, password, MIN_ITERATIONS))
        assert found == name


# --- second opinions -----------------------------------------------------------------------------


def drawn_text(rng: random.Random) -> str:
    letters = string.ascii_letters + string.digits + "=,-_.@!"
    return "".join(rng.choices(letters, k=rng.randint(1, 30)))


@both
def test_the_client_against_scramp(mechanism: Mechanism) -> None:
    rng = random.Random(drawn_seed())
    theirs = scramp.ScramMechanism(mechanism.name)
    for _ in range(20):
        name, password, iterations = drawn_text(rng), drawn_text(rng), rng.randint(4096, 8192)
        auth = theirs.make_auth_info(password, iteration_count=iterations, salt=rng.randbytes(24))
        server = theirs.make_server(lambda asked, n=name, a=auth: {n: a}[asked])
        client = ClientExchange(mechanism, name, f"n{rng.getrandbits(64)}")
        server.set_client_first(client.first().decode())
        asked = client.challenged(server.get_server_first().encode())
        assert asked.iterations == iterations
        server.set_client_final(
            client.answer(salted_password(mechanism, password, *asked)).decode()
        )
        client.verify(server.get_server_final().encode())
        assert client.done
        salt, stored_key, server_key, count = auth
        ours = credential_of(
            mechanism, salted_password(mechanism, password, salt, count), salt, count
        )
        assert ours == Credential(salt, stored_key, server_key, count)


@both
def test_the_server_against_scramp(mechanism: Mechanism) -> None:
    rng = random.Random(drawn_seed())
    for round_number in range(20):
        name, password = drawn_text(rng), drawn_text(rng)
        is_wrong = round_number % 4 == 0
        theirs = scramp.ScramClient(
            [mechanism.name], name, "another" if is_wrong else password, c_nonce="abc"
        )
        server = ServerExchange(mechanism)
        assert server.read_first(theirs.get_client_first().encode()) == name
        credential = stored(mechanism, password, rng.randint(4096, 16384))
        theirs.set_server_first(server.challenge(credential, "xyz").decode())
        final = theirs.get_client_final().encode()
        if is_wrong:
            with pytest.raises(ScramFailure, match="wrong password"):
                server.final(final)
            assert not server.done
        else:
            theirs.set_server_final(server.final(final).decode())
            assert server.done


@both
def test_the_server_against_kafka_python(mechanism: Mechanism) -> None:
    theirs = KafkaPythonClient(NAME, PASSWORD, mechanism.name)
    server = ServerExchange(mechanism)
    server.read_first(theirs.first_message())
    theirs.process_server_first_message(server.challenge(stored(mechanism), SERVER_NONCE))
    theirs.process_server_final_message(server.final(theirs.final_message()))
    assert server.done


# --- what is refused -----------------------------------------------------------------------------

BAD_FIRSTS = {
    "nothing": b"",
    "no header": b"n=user,r=abc",
    "channel binding": b"p=tls-unique,,n=user,r=abc",
    "another flag": b"x,,n=user,r=abc",
    "no name": b"n,,r=abc",
    "no nonce": b"n,,n=user",
    "an empty name": b"n,,n=,r=abc",
    "an empty nonce": b"n,,n=user,r=",
    "a mandatory extension": b"n,,m=x,n=user,r=abc",
    "another order": b"n,,r=abc,n=user",
    "a nonce with a space": b"n,,n=user,r=a b",
    "a nonce of other letters": "n,,n=user,r=\u00e4".encode(),
    "a nonce of 300": b"n,,n=user,r=" + b"x" * 300,
    "another user": b"n,a=admin,n=user,r=abc",
    "no mark of the other user": b"n,user,n=user,r=abc",
    "a delegation token": b"n,,n=user,r=abc,tokenauth=true",
    "a wrong escape": b"n,,n=a=41,r=abc",
    "an escape in an escape": b"n,,n=a=3=2CD,r=abc",
    "a small escape": b"n,,n=a=2c,r=abc",
    "a cut escape": b"n,,n=a=2,r=abc",
    "a name with a line break": b"n,,n=a\nb,r=abc",
    "a name with a zero": b"n,,n=a\0b,r=abc",
    "not UTF-8": b"n,,n=\xff,r=abc",
    "a name of 1001": b"n,,n=" + b"x" * 1001 + b",r=abc",
    "100 kB": b"n,,n=" + b"x" * 100_000 + b",r=abc",
}


@pytest.mark.parametrize("kind", BAD_FIRSTS)
def test_a_first_message_that_is_refused(kind: str) -> None:
    server = ServerExchange(SHA_256)
    with pytest.raises(ScramFailure) as failure:
        server.read_first(BAD_FIRSTS[kind])
    assert len(str(failure.value)) < 120 and "\n" not in str(failure.value)
    # Nothing helps afterwards, not even the right messages.
    with pytest.raises(ScramFailure, match="after a failure"):
        server.read_first(RFC_7677[0])
    with pytest.raises(ScramFailure, match="after a failure"):
        server.final(RFC_7677[2])
    assert not server.done


@pytest.mark.parametrize(
    "first",
    [b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,x=unknown"],
)
def test_a_first_message_that_is_accepted(first: bytes) -> None:
    assert ServerExchange(SHA_256).read_first(first) == NAME


FINAL = RFC_7677[2]
BAD_FINALS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "no proof": lambda final: final.partition(b",p=")[0],
    "an empty proof": lambda final: final.partition(b"p=")[0] + b"p=",
    "a cut proof": lambda final: final[:-4],
    "a longer proof": lambda final: final + b"AAAA",
    "no base64": lambda final: final[:-2] + b"!=",
    "another text of the same proof": lambda final: final[:-2] + b"R=",
    "another proof": lambda final: final.replace(b"p=dHz", b"p=eHz"),
    "a zero proof": lambda final: final.partition(b"p=")[0] + b"p=" + b"A" * 43 + b"=",
    "another channel binding": lambda final: final.replace(b"c=biws", b"c=eSws"),
    "a channel binding with data": lambda final: final.replace(b"c=biws", b"c=cD10bHM="),
    "no channel binding": lambda final: final.partition(b",")[2],
    "another nonce": lambda final: final.replace(b"r=rOpr", b"r=rOps"),
    "the client's nonce alone": lambda final: final.replace(SERVER_NONCE.encode(), b""),
    "no nonce": lambda final: final.replace(b"r=", b"q="),
    "an extension that was not signed": lambda final: final.replace(b",p=", b",x=1,p="),
    "100 kB": lambda final: final.replace(b",p=", b",x=" + b"1" * 100_000 + b",p="),
    "the first message": lambda _: RFC_7677[0],
}


@pytest.mark.parametrize("kind", BAD_FINALS)
def test_a_final_message_that_is_refused(kind: str) -> None:
    server = begun()
    with pytest.raises(ScramFailure):
        server.final(BAD_FINALS[kind](FINAL))
    assert not server.done
    with pytest.raises(ScramFailure, match="after a failure"):
        server.final(FINAL)
    assert not server.done
    assert begun().final(FINAL) == RFC_7677[3]


def test_a_proof_holds_for_the_channel_binding_that_was_announced() -> None:
    """A client that could bind says so (y); whoever changes it to n on the way is found out."""
    client, server = ClientExchange(SHA_256, NAME, CLIENT_NONCE), ServerExchange(SHA_256)
    server.read_first(b"y" + client.first()[1:])
    asked = client.challenged(server.challenge(stored(), SERVER_NONCE))
    with pytest.raises(ScramFailure, match="another channel binding"):
        server.final(client.answer(salted_password(SHA_256, PASSWORD, *asked)))
    assert not server.done


def test_a_recorded_exchange_proves_nothing_again() -> None:
    server = ServerExchange(SHA_256)
    server.read_first(RFC_7677[0])
    server.challenge(stored(), "another nonce".replace(" ", "-"))
    with pytest.raises(ScramFailure, match="another nonce"):
        server.final(FINAL)
    # Nor in the same exchange a second time.
    again = begun()
    again.final(FINAL)
    with pytest.raises(ScramFailure, match="twice"):
        again.final(FINAL)


def test_steps_come_in_their_order() -> None:
    with pytest.raises(ScramFailure):
        ServerExchange(SHA_256).final(FINAL)
    with pytest.raises(ScramFailure):
        ServerExchange(SHA_256).challenge(stored(), SERVER_NONCE)
    client = ClientExchange(SHA_256, NAME, CLIENT_NONCE)
    with pytest.raises(ScramFailure):
        client.verify(RFC_7677[3])
    assert not client.done


def test_a_wrong_name_takes_the_path_of_a_wrong_password() -> None:
    failures = set()
    lengths = set()
    key = b"k" * 32
    for credential in (stored(password="other"), decoy(SHA_256, key, NAME, MIN_ITERATIONS)):
        client, server = ClientExchange(SHA_256, NAME, CLIENT_NONCE), ServerExchange(SHA_256)
        server.read_first(client.first())
        first = server.challenge(credential, SERVER_NONCE)
        asked = client.challenged(first)
        with pytest.raises(ScramFailure) as failure:
            server.final(client.answer(salted_password(SHA_256, PASSWORD, *asked)))
        failures.add(str(failure.value))
        lengths.add([part[:2] for part in first.decode().split(",")][1])
    assert len(failures) == len(lengths) == 1
    # Asked twice, a name has one salt; another name, or another key, another.
    again = decoy(SHA_256, key, NAME, MIN_ITERATIONS)
    assert again == decoy(SHA_256, key, NAME, MIN_ITERATIONS)
    others = (decoy(SHA_256, key, "b", MIN_ITERATIONS), decoy(SHA_256, b"l", NAME, MIN_ITERATIONS))
    assert again.salt not in {other.salt for other in others}
    assert len(again.stored_key) == SHA_256.size
    assert len(decoy(SHA_512, key, NAME, MIN_ITERATIONS).server_key) == SHA_512.size


BAD_CHALLENGES = {
    "nothing": b"",
    "a refusal": b"e=other-error",
    "no salt": RFC_7677[1].replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
    "no base64": RFC_7677[1].replace(b"s=W22", b"s=W2!"),
    "a salt of 300 bytes": RFC_7677[1].replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"AAAA" * 100),
    "another nonce": RFC_7677[1].replace(b"r=rOpr", b"r=rOps"),
    "no nonce of the server": RFC_7677[1].replace(SERVER_NONCE.encode(), b""),
    "a mandatory extension": b"m=x," + RFC_7677[1],
    "another order": b"i=4096,s=AAAA,r=" + CLIENT_NONCE.encode() + b"x",
    "one iteration": RFC_7677[1].replace(b"i=4096", b"i=1"),
    "a few iterations": RFC_7677[1].replace(b"i=4096", b"i=4095"),
    "10 million iterations": RFC_7677[1].replace(b"i=4096", b"i=10000000"),
    "as many as there are": RFC_7677[1].replace(b"i=4096", b"i=" + b"9" * 1000),
    "negative iterations": RFC_7677[1].replace(b"i=4096", b"i=-4096"),
    "other digits": RFC_7677[1].replace(b"i=4096", "i=\u0664\u0660\u0669\u0666".encode()),
    "no iterations": RFC_7677[1].replace(b"i=4096", b"i="),
    "not UTF-8": b"\xff" + RFC_7677[1],
    "100 kB": RFC_7677[1] + b",x=" + b"1" * 100_000,
}


@pytest.mark.parametrize("kind", BAD_CHALLENGES)
def test_a_challenge_that_a_client_refuses(kind: str) -> None:
    client = ClientExchange(SHA_256, NAME, CLIENT_NONCE)
    client.first()
    begun_s = time.perf_counter()
    with pytest.raises(ScramFailure):
        client.challenged(BAD_CHALLENGES[kind])
    # No work was done for it: 10 million iterations take seconds.
    assert time.perf_counter() - begun_s < 1
    with pytest.raises(ScramFailure, match="after a failure"):
        client.challenged(RFC_7677[1])


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"e=invalid-proof",
        b"v=",
        b"v=!",
        b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        RFC_7677[3][:-4],
        b"x" * 100_000,
    ],
)
def test_a_server_that_does_not_know_the_password(final: bytes) -> None:
    client = ClientExchange(SHA_256, NAME, CLIENT_NONCE)
    client.first()
    client.answer(salted_password(SHA_256, PASSWORD, *client.challenged(RFC_7677[1])))
    with pytest.raises(ScramFailure):
        client.verify(final)
    assert not client.done


def test_drawn_damage_proves_nothing() -> None:
    rng = random.Random(drawn_seed())
    for _ in range(3_000):
        damaged = bytearray(FINAL)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        server = begun_cheaply()
        if bytes(damaged) == FINAL:
            continue
        with pytest.raises(ScramFailure):
            server.final(bytes(damaged))
        assert not server.done


STORED = stored()


def begun_cheaply() -> ServerExchange:
    server = ServerExchange(SHA_256)
    server.read_first(RFC_7677[0])
    server.challenge(STORED, SERVER_NONCE)
    return server


# --- credentials ---------------------------------------------------------------------------------


@both
def test_a_credential_as_text(mechanism: Mechanism) -> None:
    credential = stored(mechanism)
    text = to_text(credential)
    assert text.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=")
    assert text.endswith(",iterations=4096")
    assert from_text(mechanism, text) == credential
    other = SHA_512 if mechanism is SHA_256 else SHA_256
    for bad in (
        "",
        text.replace("salt=", "salz="),
        text + ",more=1",
        text.partition(",")[2],
        text.replace("4096", "4095"),
        text.replace("4096", "x"),
        text.replace("stored_key=", "stored_key=!"),
        text.replace("salt=W22ZaJ0SNY7soEsUEjb6gQ==", "salt="),
        text + "," + text,
    ):
        with pytest.raises(ScramFailure) as failure:
            from_text(mechanism, bad)
        assert "W22Z" not in str(failure.value)
    with pytest.raises(ScramFailure):
        from_text(other, text)


def test_the_iterations_of_a_new_credential() -> None:
    for iterations in (MIN_ITERATIONS, MAX_ITERATIONS):
        assert why_not_iterations(iterations) is None
    for iterations in (-1, 0, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1, 10_000_000):
        assert why_not_iterations(iterations) == "iterations must be 4096 to 16384"
    assert MAX_ITERATIONS < MOST_ITERATIONS_ASKED and MOST_MESSAGE_BYTES < 65_536
