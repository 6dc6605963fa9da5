"""The command line of the jobs, without Spark: its advice, and where the cluster is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tidelog
from tidelog.cli.connecting import SERVER_VARIABLE
from tidelog.pipeline import __main__ as command_line


@pytest.mark.parametrize("job", ["archive", "audit"])
def test_the_cluster_is_named_in_the_environment_too(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = command_line.main.commands[job]
    (option,) = (each for each in command.params if each.name == "bootstrap_server")
    assert option.envvar == SERVER_VARIABLE


def test_no_advice_installs_a_package_by_a_name_that_no_index_has() -> None:
    """Whoever takes the name `tidelog` on an index is installed by it."""
    by_name = re.compile(r"""pip install[^\n&]*?[ '"]tidelog\b""")
    source = Path(tidelog.__file__).parent
    pages = source.parents[1] / "docs"
    files = [*source.rglob("*.py"), *pages.rglob("*.md"), *source.parents[1].glob("*.md")]
    assert len(files) > 500
    assert [str(each) for each in files if by_name.search(each.read_text())] == []


def test_what_is_missing_is_named_with_a_way_that_is_true(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(name="pyspark.sql")

    monkeypatch.setattr(command_line.main, "main", lacks)
    assert command_line.run(["archive"]) == command_line._FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: pyspark.sql is not installed: ")
    assert "/path/to/tidelog[spark]" in line and "docs/operating/pipeline.md" in line
