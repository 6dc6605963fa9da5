"""What `/metrics` of a process says, as numbers that tests compare.

Owns the reading of Prometheus's text. Knows no name.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from tests.support.processes import DEADLINE_S, wait_until

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")


@dataclass
class Page:
    """One page: the types by family, and the samples by name with their labels as they stand."""

    text: str
    types: dict[str, str] = field(default_factory=dict)
    samples: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in self.text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.types[name] = kind
            elif (found := _SAMPLE.match(line)) is not None:
                self.samples.setdefault(found[1], {})[found[2] or ""] = float(found[3])

    def value(self, name: str, labels: str = "") -> float:
        """One sample, which has to be there; `labels` as they stand, in their order."""
        assert labels in self.samples.get(name, {}), f"{name}{labels} is missing in\n{self.text}"
        return self.samples[name][labels]

    def total(self, name: str) -> float:
        """The sum of all samples of a name, 0 if there is none."""
        return sum(self.samples.get(name, {}).values())


def page(port: int) -> Page:
    """The metrics of a process; its address opens when all else has."""
    url = f"http://127.0.0.1:{port}/metrics"
    found: list[Page] = []

    def opened() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                found.append(Page(answer.read().decode()))
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            return False
        return True

    wait_until(opened, DEADLINE_S, f"{url} answers")
    return found[-1]
