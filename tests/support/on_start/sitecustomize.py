"""Python imports this module when it starts, where its folder is on the path: see `loop_guard`."""

import importlib.util
import os
import sys
from pathlib import Path

if os.environ.get("TIDELOG_LOOP_GUARD"):
    _spec = importlib.util.spec_from_file_location(
        "tidelog_loop_guard", Path(__file__).parents[1] / "loop_guard.py"
    )
    assert _spec is not None and _spec.loader is not None
    _guard = importlib.util.module_from_spec(_spec)
    sys.modules[_spec.name] = _guard
    _spec.loader.exec_module(_guard)
    _guard.install()
