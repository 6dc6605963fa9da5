"""The wheel in an empty environment: `pip install tidelog` gives server, commands and client."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import BIN, LENT, ROOT, constraints, run
from tests.support.processes import DEADLINE_S, free_ports

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with nothing but the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("installed")
    run(BIN / "uv", "venv", "-q", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(BIN / "uv", "pip", "install", "-q", "--python", python, "-c", constraints(folder), wheel)
    return folder / "venv" / "bin"


def test_the_wheel_brings_the_server_and_nothing_of_spark(installed: Path) -> None:
    program = "import importlib.metadata as m; print(*[d.name for d in m.distributions()])"
    listed = run(installed / "python", "-c", program)
    assert "pyspark" not in listed.split()
    assert "pandas" not in listed.split()
    assert "0.1.0" in run(installed / "tidelog", "--version")


def test_the_pipeline_says_what_it_lacks_and_is_there_with_spark(installed: Path) -> None:
    """The wheel has the pipeline and Spark's way to it; Spark itself comes with the extra."""
    python = installed / "python"
    job = [python, "-m", "tidelog.pipeline"]
    asked = ["archive", "--bootstrap-server", "x:1", "--topic", "t", "--lake", "lake"]
    done = subprocess.run(
        [*job, *asked], capture_output=True, text=True, cwd="/", timeout=DEADLINE_S
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "pip install '/path/to/tidelog[spark]'" in line
    # The extra, as this environment has it: its packages are lent instead of copied, 400 MB.
    # After the wheel's own folder, so that tidelog itself is the wheel's.
    program = (
        f"import sys; sys.path.append({str(LENT)!r}); import pyspark_tidelog, tidelog;"
        "from tidelog.pipeline.__main__ import run;"
        "source = pyspark_tidelog.DefaultSource({'kafka.bootstrap.servers': 'x:1'});"
        "print(source.name(), source.schema(), tidelog.__file__, pyspark_tidelog.__file__)"
    )
    name, rest = run(python, "-c", program).split(" ", 1)
    assert name == "tidelog" and "`offset` bigint" in rest
    assert rest.count(str(installed.parent)) == 2, "tidelog is that of the wheel"
    submitted = run(*job, "file").strip()
    assert Path(submitted).is_file() and str(installed.parent) in submitted


def five_minutes(tool: Path, address: str) -> None:
    """The README's commands against this server; the handbook's: `test_package_handbook.py`."""
    text = README.read_text().partition("## Five minutes\n\n```\n")[2]
    first, _, rest = text.partition("```")
    setup, start = first.splitlines()
    assert (setup, start.split()[:2]) == ("make setup", [".venv/bin/tidelog", "up"])
    lines = rest.partition("```\n")[2].partition("```")[0].replace("\\\n", " ").splitlines()
    said = [shell(line, tool, address) for line in lines]
    assert said[0] == "Created topic greetings.\n"
    assert said[2] == "hello\n"
    assert "all lead, all in sync" in said[3]


def shell(line: str, tool: Path, address: str) -> str:
    """Run a line of the README with the installed tool, against this server."""
    line = line.replace("127.0.0.1:9092", address)
    return run("sh", "-ec", re.sub(r"(?<!\S)\.venv/bin/tidelog ", f"{tool} ", line))


def test_the_installed_server_serves(installed: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = subprocess.Popen(
        [installed / "tidelog", "up", "--data", tmp_path / "data", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith(f"ready bootstrap=127.0.0.1:{port}"), ready
        address = f"127.0.0.1:{port}"
        tool = installed / "tidelog"
        run(tool, "topics", "--bootstrap-server", address, "--create", "--topic", "t")
        said = run(tool, "topics", "--bootstrap-server", address, "--list", "--json")
        assert '"t"' in said
        five_minutes(tool, address)
    finally:
        server.terminate()
        assert server.wait(timeout=DEADLINE_S) == 0
