"""The checksum is CRC-32C, and its only cost is the import of the library's compiled module."""

import subprocess
import sys

import crc32c as library
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.crc import crc32c


def test_it_is_the_checksum_of_the_castagnoli_polynomial() -> None:
    # The check value of RFC 3720, appendix B.4, and of the catalogue of CRCs.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


@given(st.binary(), st.binary())
def test_it_goes_on_after_other_bytes_as_the_library_does(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == library.crc32c(first + second)


def test_what_a_server_does_not_need_is_not_imported() -> None:
    asked = "import sys, tidelog.records.batch; print('importlib.metadata' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
