"""Editors see the types and docstrings of the blocking clients' derived methods."""

from __future__ import annotations

import ast
import inspect

import pytest

from tests.support import blocking_stubs
from tidelog.aio import Admin as AsyncAdmin
from tidelog.aio import Consumer as AsyncConsumer
from tidelog.blocking.admin import Admin
from tidelog.blocking.consumer import Consumer
from tidelog.blocking.producer import Producer


def test_the_stub_is_up_to_date() -> None:
    text = blocking_stubs.STUB.read_text(encoding="utf-8")
    assert text == blocking_stubs.stub(), f"run .venv/bin/{blocking_stubs.COMMAND}"


def test_the_stub_shows_what_the_methods_have() -> None:
    """A stub is not run: its arguments are those of the methods that are."""
    classes = {"ConsumerMethods": Consumer, "ProducerMethods": Producer, "AdminMethods": Admin}
    for node in ast.parse(blocking_stubs.STUB.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for shown in node.body:
            if isinstance(shown, ast.FunctionDef) and shown.name != "__init__":
                method = getattr(classes[node.name], shown.name)
                assert [*inspect.signature(method).parameters] == [
                    arg.arg
                    for arg in (
                        *shown.args.args,
                        *filter(None, [shown.args.vararg]),
                        *shown.args.kwonlyargs,
                    )
                ]
                assert inspect.cleandoc(ast.get_docstring(shown) or "") == inspect.getdoc(method)


OTHER_NAMES = {"stop", "getmany", "getone", "start", "fetch_partitions", "places"}
"""Methods of asyncio alone: aiokafka's names, and those with another name here."""

INSIDE = {
    "attend",
    "interrupt",
    "is_due",
    "leave_former",
    "mark_woken",
    "ready",
    "take",
    "take_one",
}
"""What the blocking consumer asks the asyncio one for."""


@pytest.mark.parametrize(
    ("blocking", "asynchronous"), [(Consumer, AsyncConsumer), (Admin, AsyncAdmin)]
)
def test_the_blocking_clients_have_the_methods_of_the_asyncio_ones(
    blocking: type, asynchronous: type
) -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(asynchronous, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - set(dir(blocking)) - OTHER_NAMES - INSIDE == set()
