"""Programs that import torch, for tests, each in a process of its own.

To start Python and import torch takes seconds, and what a test asks of a program fractions of one. So each program runs
in a fork of a process that has imported torch and nothing else: what it imports besides is new to it, it is
``__main__``, and what it raises is told as ``python -c`` tells it. What torch reads while it is imported, such as
``TORCH_LOGS``, is that of the tests: a test of it starts an interpreter.
"""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# To take all of torch apart at the end takes longer than a program; what the end is for, hooks and streams, is done.
SERVER = """
import atexit, gc, json, os, sys, threading
import torch
gc.collect()
gc.freeze()

def run(path, first_on_path, output, errors):
    for name, stream in ((os.devnull, 0), (output, 1), (errors, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT if stream else os.O_RDONLY, 0o600), stream)
    sys.stdin, sys.path[:0], status = open(0), first_on_path, 0
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__builtins__ = __builtins__
    try:
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else end.code is not None
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next  # from the program on
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status))

for asked in sys.stdin:
    if not os.fork():
        run(*json.loads(asked))
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )
    assert process.stdin is not None
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    return process


def run_behind_torch(code: str, *, path: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program that imports torch, or what imports it.

    Args:
        code: The program.
        path: Folders in which modules are looked for before others.
    """
    process = _server()
    assert process.stdin is not None
    assert process.stdout is not None
    with tempfile.TemporaryDirectory(prefix="torchipu-program-") as folder:
        program, output, errors = (Path(folder, name) for name in ("program.py", "output", "errors"))
        program.write_text(code, encoding="utf-8")
        process.stdin.write(json.dumps([str(program), [str(one) for one in path], str(output), str(errors)]) + "\n")
        process.stdin.flush()
        status = process.stdout.readline()
        assert status, "the process that has imported torch is gone"
        return subprocess.CompletedProcess(
            ["python", "-c", code], int(status), output.read_text(encoding="utf-8"), errors.read_text(encoding="utf-8"),
        )
