"""Writer of ``messages.pyi``, the type stub of all messages, beside ``messages.py``.

Run as ``python -m tidelog.protocol.stubs``; the file is derived and stays out of the repository.
"""

from __future__ import annotations

from pathlib import Path

from tidelog.protocol import schema, structs

_HEAD = """# Made from the schema files by `python -m tidelog.protocol.stubs`; do not edit.
from typing import Any
from uuid import UUID

from msgspec import Struct

from tidelog.protocol.primitives import Buffer, Records
from tidelog.protocol.schema import Message

def classes_of(message: Message) -> dict[str, type[Any]]: ...

"""


def text() -> str:
    """Return the stub of every message of every schema."""
    parts = [_HEAD]
    for file_name in schema.file_names():
        api = schema.load(file_name)
        parts += [structs.stub(api.request), structs.stub(api.response)]
    return "".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("messages.pyi").write_text(text())
