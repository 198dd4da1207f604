"""Jobs of ``poprun`` in processes without torch; run by ``tests.distributed.forked``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import api

from tests.distributed.forked import Scenario
from tests.waiting import SOON
from torchipu.poprun import agent, launch  # noqa: F401 - imported once for all scenarios
from torchipu.poprun.command import main

PYTHON = (sys.executable, "-I", "-S")
NOTE = """
import json, os
rank = os.environ["RANK"]
values = {name: value for name, value in os.environ.items()
          if name.startswith(("POPDIST_", "OMPI_", "OMP_", "TORCHIPU_", "IPUOF_", "POPTORCH_", "MARK"))}
values |= {"cpus": sorted(os.sched_getaffinity(0)), "folder": os.getcwd()}
with open(os.environ["NOTES"] + "/" + rank + ".json", "w") as file:
    json.dump(values, file)
print("out of", rank)
import sys
sys.stderr.write("err of " + rank + "\\n")
"""
FIRST_FAILS = "import os, sys; sys.exit(7 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
LAST_ENDS = "case $RANK in 1) echo the last words >&2; {};; *) sleep 60;; esac"


def poprun(*words: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the command in this process, which is a fork."""
    os.environ.update({"NOTES": os.getcwd(), **(environment or {})})
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    start = time.monotonic()
    status = main(words)
    sys.stdout.flush()
    return {
        "status": status, "out": Path("out").read_text(), "err": Path("err").read_text(),
        "seconds": time.monotonic() - start, "notes": notes(),
    }


def notes() -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in Path().glob("[0-9].json")}


def contract(rank: int) -> dict[str, Any]:
    environment = {"MARK_KEPT": "a b", "OMP_NUM_THREADS": "3"}
    found = poprun(
        "-v", "--num-instance=2", "--num-replicas", "4", "--ipus-per-replica=8", "--print-topology", "yes",
        "--only-output-from-instance", "1", "--log-dir", "logs", "--executable-cache-path=cache",
        "--mpi-global-args=--tag-output --allow-run-as-root --mca btl tcp,self", "--vipu-server-host=h",
        "--mpi-local-args", "-x MARK_KEPT -x MARK_SET='1 2' -x MARK_MISSING", "--update-partition=no",
        *PYTHON, "-c", NOTE, environment=environment,
    )
    found["logs"] = {str(path.relative_to("logs")): path.read_text() for path in Path("logs").rglob("*.log")}
    return found


def bound(rank: int) -> dict[str, Any]:
    Path("elsewhere").mkdir()
    return poprun(
        "--numa-aware", "--num-instances", "2", "--num-replicas", "2", "--mpi-local-args=--wdir elsewhere", *PYTHON,
        "-c", NOTE,
    )


def ends(how: str, *words: str) -> dict[str, Any]:
    return poprun("--num-instances=2", "--num-replicas=2", *words, "sh", "-c", LAST_ENDS.format(how))


def start_again(rank: int) -> dict[str, Any]:
    return poprun("--max-restarts=2", *PYTHON, "-c", FIRST_FAILS)


def host(rank: int) -> dict[str, Any]:
    Path(str(rank)).mkdir()
    os.chdir(str(rank))
    return poprun(
        "--num-instances=4", "--num-replicas=8", "--nnodes=2", f"--node-rank={rank}",
        f"--rdzv-endpoint=localhost:{os.environ['PORT']}", *PYTHON, "-c", NOTE,
    )


def host_in_vain(rank: int) -> dict[str, Any]:
    return host(rank)


def tell_no_guard() -> None:
    """Let a launcher not come to tell its guard of its instances."""
    agent.Guard.watch = lambda guard, pids: None


def start_for_long() -> None:
    """Let a launcher not come to hear of the last instance that it has started."""
    start = api.get_subprocess_handler

    def start_and_wait(*args: Any, **settings: Any) -> Any:
        handler = start(*args, **settings)
        if settings["local_rank_id"]:
            time.sleep(60)
        return handler

    api.get_subprocess_handler = start_and_wait


def interrupt(how: int, *, prepare: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Send a signal to a launcher whose instances have started something, and look what is left.

    Args:
        how: The signal.
        prepare: Called in the launcher before it begins.
    """
    launcher = os.fork()
    if launcher == 0:
        prepare()
        # The second process of each instance stays in its group, and would not notice by itself.
        os._exit(poprun(
            "--num-instances=2", "--num-replicas=2", "sh", "-c", "sleep 60 & echo $$ $! > $RANK.pids; wait",
        )["status"])
    pids: list[int] = []
    while len(pids) < 4:
        assert os.waitpid(launcher, os.WNOHANG) == (0, 0), "the launcher has ended by itself"
        time.sleep(0.02)
        pids = [int(word) for file in Path().glob("*.pids") for word in file.read_text().split()]
    os.kill(launcher, how)
    start = time.monotonic()
    _, status = os.waitpid(launcher, 0)
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists() and not is_dead(pid)]):
        if time.monotonic() - start > SOON / 2:
            break
        time.sleep(0.02)
    return {"status": os.waitstatus_to_exitcode(status), "left": left, "seconds": time.monotonic() - start}


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def much_output(rank: int) -> dict[str, Any]:
    found = poprun(
        "--num-instances=2", "--num-replicas=2", *PYTHON, "-c",
        "import os\nfor number in range(20000): print(os.environ['RANK'], number, '.' * 50)\nprint('?', end='')",
    )
    lines = found.pop("out").splitlines()
    found["in_order"] = [
        [int(line.split()[1]) for line in lines if line.startswith(f"{rank} ")] == list(range(20000))
        for rank in range(2)
    ]
    found["prompts"] = "".join(lines).count("?")
    return found


SCENARIOS = {
    "contract": Scenario(contract, (0,)),
    "bound": Scenario(bound, (0,)),
    "status": Scenario(lambda rank: ends("exit 7"), (0,)),
    "killed": Scenario(lambda rank: ends("kill -KILL $$"), (0,)),
    "stopped": Scenario(lambda rank: ends("kill -STOP $$"), (0,), {"TORCHIPU_COLLECTIVE_TIMEOUT": "0.5"}),
    "again": Scenario(start_again, (0,)),
    "no_program": Scenario(lambda rank: poprun("no-such-program"), (0,)),
    "hosts": Scenario(host, (0, 1), {"PORT": "{port}"}),
    "first_host": Scenario(host_in_vain, (0,), {"PORT": "{port}", "TORCHIPU_INIT_TIMEOUT": "1"}),
    "second_host": Scenario(host_in_vain, (1,), {"PORT": "{port}", "TORCHIPU_INIT_TIMEOUT": "1"}),
    "launcher_killed": Scenario(lambda rank: interrupt(signal.SIGKILL), (0,)),
    "launcher_killed_at_once": Scenario(lambda rank: interrupt(signal.SIGKILL, prepare=tell_no_guard), (0,)),
    "launcher_ended": Scenario(lambda rank: interrupt(signal.SIGTERM), (0,)),
    "launcher_ended_at_once": Scenario(lambda rank: interrupt(signal.SIGTERM, prepare=start_for_long), (0,)),
    "output": Scenario(much_output, (0,)),
}
