"""Becomes an instance: binds itself to the launcher's life and to its CPUs, sets its variables, runs the program.

Run as a file, without site packages, so that it costs a few hundredths of a second.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys

PLAN = "TORCHIPU_POPRUN"
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the program in the place of this one."""
    plan = json.loads(os.environ.pop(PLAN))
    # Kept by the program that comes next: where the launcher dies, even by SIGKILL, so does this process.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != plan["launcher"]:
        sys.exit(1)
    # Before the program starts anything: the launcher may be killed before it has told the guard of this process.
    with contextlib.suppress(OSError):
        try:
            guard = os.open(plan["guard"], os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:  # the launcher ends, and lets the guard end all that there is
            sys.exit(1)
        os.write(guard, b"+%d\n" % os.getpid())
        os.close(guard)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
    local_replicas = plan["num_replicas"] // size
    os.environ.update({
        "POPDIST_NUM_TOTAL_REPLICAS": str(plan["num_replicas"]),
        "POPDIST_NUM_IPUS_PER_REPLICA": str(plan["ipus_per_replica"]),
        "POPDIST_NUM_LOCAL_REPLICAS": str(local_replicas),
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
        "POPDIST_REPLICA_INDEX_OFFSET": str(rank * local_replicas),
        "POPDIST_LOCAL_INSTANCE_INDEX": local_rank,
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        **plan["environment"],
    })
    if plan["cpus"]:
        os.sched_setaffinity(0, plan["cpus"][int(local_rank)])
    program = plan["program"]
    try:
        if plan["folder"]:
            os.chdir(plan["folder"])
        os.execvp(program[0], program)
    except OSError as error:
        what = plan["folder"] if error.filename == plan["folder"] else program[0]
        hint = f"; to run it with Python: poprun python3 {what}" if what.endswith(".py") else ""
        sys.stderr.write(f"poprun: {what}: {error.strerror}{hint}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main()
