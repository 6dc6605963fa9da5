"""Tests of the lazily loaded public names: each loads, and the package itself stays cheap."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import tidelog
import tidelog.aio

LOADED = """
import sys, tidelog
print(*(each for each in sys.modules if each.startswith("tidelog.") or each == "asyncio"))
"""


def test_importing_the_package_loads_no_client() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert set(found.stdout.split()) == {"tidelog.lazy_names", "tidelog.version"}


@pytest.mark.parametrize("package", ["tidelog", "tidelog.aio"])
def test_each_public_name_loads(package: str) -> None:
    module = importlib.import_module(package)
    assert "TopicPartition" in module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match=r"module 'tidelog' has no attribute 'Produser'"):
        tidelog.Produser  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'tidelog.aio' has no attribute 'Produser'"):
        tidelog.aio.Produser  # noqa: B018
