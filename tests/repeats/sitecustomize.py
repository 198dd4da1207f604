"""Imported by processes that a test starts while lines are recorded: this folder is on their path then."""

import os
import sys
from pathlib import Path

if folder := os.environ.get("TORCHIPU_REACHED_LINES"):
    import atexit
    import importlib.util

    spec = importlib.util.spec_from_file_location("reached_lines", Path(__file__).with_name("lines.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reached_lines"] = module
    spec.loader.exec_module(module)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    lines = module.Lines(Path(folder))
    lines.begin()
    lines.begin_test(test)
    atexit.register(lines.write)
