"""``poprun``: what its command line means, what instances are told, and how jobs end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.forked import Outcome, outcomes
from tests.waiting import SOON
from torchipu import __version__
from torchipu.errors import OptionsError
from torchipu.poprun import arguments, cpus, hosts
from torchipu.poprun.command import main
from torchipu.poprun.deaths import Death
from torchipu.poprun.job import job_of
from torchipu.poprun.mpi_arguments import read_mpi_arguments
from torchipu.poprun.summary import summary


@pytest.fixture(scope="module")
def ran() -> dict[str, list[Outcome]]:
    return outcomes("tests.distributed.launches")


def only(found: list[Outcome]) -> Any:
    outcome, = found
    assert outcome.error is None, outcome.error
    return outcome.value


# --------------------------------------------------------------------------- what instances are told
def test_each_instance_finds_the_environment_that_popdist_reads(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["contract"])
    assert job["status"] == 0, job["err"]
    for rank in (0, 1):
        note = job["notes"][str(rank)]
        expected = {
            "POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_LOCAL_REPLICAS": "2", "POPDIST_NUM_IPUS_PER_REPLICA": "8",
            "POPDIST_REPLICA_INDEX_OFFSET": str(2 * rank), "POPDIST_LOCAL_INSTANCE_INDEX": str(rank),
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1", "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "MARK_KEPT": "a b",
            "MARK_SET": "1 2", "IPUOF_VIPU_API_HOST": "h", "OMP_NUM_THREADS": "3",  # the user's own stays
        }
        assert {name: note.get(name) for name in expected} == expected
        assert note["POPTORCH_CACHE_DIR"].endswith("/contract/cache")
        assert "TORCHIPU_POPRUN" not in note


def test_instances_share_the_threads_of_a_host_or_are_bound_to_cpus_of_their_own(
    ran: dict[str, list[Outcome]],
) -> None:
    free, bound = only(ran["contract"])["notes"], only(ran["bound"])["notes"]
    available = len(free["0"]["cpus"])
    assert {note["TORCHIPU_HOST_THREADS"] for note in free.values()} == {str(max(available // 2, 1))}
    if available > 1:
        assert not set(bound["0"]["cpus"]) & set(bound["1"]["cpus"])
    assert bound["0"]["folder"].endswith("elsewhere")


def test_output_is_tagged_limited_to_one_instance_and_kept_in_files(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["contract"])
    assert "[1,1]<stdout>:out of 1\n" in job["out"]
    assert "[1,1]<stderr>:err of 1\n" in job["err"]
    assert "of 0" not in job["out"] + job["err"]
    assert job["logs"] == {
        f"attempt_0/instance_{rank}/std{name}.log": f"{name} of {rank}\n" for rank in (0, 1) for name in ("out", "err")
    }


def test_what_has_no_effect_is_named(ran: dict[str, list[Outcome]]) -> None:
    text = only(ran["contract"])["err"]
    assert "arguments of mpirun without effect here: --mca btl tcp,self, -x MARK_MISSING (not set)" in text
    assert "options without effect on an emulated machine: --update-partition, --vipu-server-host" in text


def test_the_topology_lists_instances_replicas_and_ipus(ran: dict[str, list[Outcome]]) -> None:
    text = only(ran["contract"])["out"]
    assert "4 replicas of 8 IPUs in 2 instances" in text
    assert re.search(r"localhost +\S +1 \S +2-3 \S +16-31 \S", text)


def test_lines_of_several_instances_stay_whole_and_in_order_and_prompts_are_shown(
    ran: dict[str, list[Outcome]],
) -> None:
    job = only(ran["output"])
    assert (job["status"], job["in_order"], job["prompts"]) == (0, [True, True], 2)


# --------------------------------------------------------------------------- how jobs end
def test_the_first_instance_that_fails_ends_all_and_gives_the_status(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["status"])
    assert job["status"] == 7
    assert re.search(r"poprun: instance 1 of 2 \(rank 1, pid \d+ on .*\) ended with status 7, \d+\.\d s", job["err"])
    assert "  cause   the last words\n  stderr  the last words\n" in job["err"]
    assert job["seconds"] < SOON


def test_a_killed_instance_is_named_with_its_signal(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["killed"])
    assert job["status"] == 128 + 9
    assert "instance 1 of 2" in job["err"]
    assert "SIGKILL: somebody's kill -9, or the system for want of memory" in job["err"]


def test_a_stopped_instance_ends_the_job_once_nobody_would_wait_longer(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["stopped"])
    assert job["status"] != 0
    assert re.search(r"instance 1 of 2 \(.*\) was stopped \(SIGSTOP\) and did not go on", job["err"])
    assert job["seconds"] < 0.5 + SOON


def test_the_cause_is_the_exception_and_not_what_the_interpreter_says_after_it() -> None:
    said = ["Traceback (most recent call last):", "[rank1]: torch.OutOfMemoryError: no memory", "leaked semaphores"]
    text = summary([Death(1, 7, 2.0)], {}, {1: 1}, {1: said}, num_instances=2, host="h")
    assert text.startswith("poprun: instance 1 of 2 (rank 1, pid 7 on h) ended with status 1, 2.0 s after its start\n")
    assert "  cause   [rank1]: torch.OutOfMemoryError: no memory\n" in text


def test_instances_are_started_again_as_often_as_asked(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["again"])
    assert job["status"] == 0
    assert "all instances are started again; 1 of 2 restarts are left then" in job["err"]


def test_a_program_that_is_not_there_is_named(ran: dict[str, list[Outcome]]) -> None:
    job = only(ran["no_program"])
    assert job["status"] == 127
    assert "no-such-program: No such file or directory" in job["err"]
    assert "there is no such program" in job["err"]


@pytest.mark.parametrize(("name", "status"), [
    ("launcher_killed", -9), ("launcher_killed_at_once", -9), ("launcher_ended", 128 + 15),
    ("launcher_ended_at_once", 128 + 15),
])
def test_nothing_that_was_started_outlives_the_launcher(
    ran: dict[str, list[Outcome]], name: str, status: int,
) -> None:
    job = only(ran[name])
    assert (job["status"], job["left"]) == (status, [])
    assert job["seconds"] < SOON


def test_the_same_command_on_two_hosts_makes_one_job(ran: dict[str, list[Outcome]]) -> None:
    jobs = [outcome.value for outcome in ran["hosts"]]
    assert [job["status"] for job in jobs] == [0, 0]
    notes = {**jobs[0]["notes"], **jobs[1]["notes"]}
    assert {rank: note["POPDIST_REPLICA_INDEX_OFFSET"] for rank, note in notes.items()} == {
        "0": "0", "1": "2", "2": "4", "3": "6",
    }
    assert [notes[str(rank)]["POPDIST_LOCAL_INSTANCE_INDEX"] for rank in range(4)] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(("name", "present", "absent"), [
    ("first_host", "host 0 (--node-rank 0)", "host 1"), ("second_host", "host 1 (--node-rank 1)", "host 0"),
])
def test_a_host_that_waits_in_vain_says_where_and_for_whom(
    ran: dict[str, list[Outcome]], name: str, present: str, absent: str,
) -> None:
    job = only(ran[name])
    assert job["status"] == 1
    assert re.match(r"poprun: the 2 hosts did not all come to localhost:\d+ within 1 s: .*\n", job["err"])
    assert f"  present {present}\n  absent  {absent}\n" in job["err"]


# --------------------------------------------------------------------------- the command line
def test_options_may_be_shortened_joined_and_repeated() -> None:
    line = arguments.parse([
        "-vv", "--num-instance=2", "--num-rep", "8", "--ipus", "4", "--numa-aware=yes", "--print", "--tag-output", "0",
        "-H", "h[0-1]", "--mpi-local-args=-x A", "--mpi-local-args", "-x B", "--", "python3", "-u", "train.py",
        "--num-replicas", "3",
    ])
    values = line.values
    assert (values.num_instances, values.num_replicas, values.ipus_per_replica) == (2, 8, 4)
    assert (values.numa_aware, values.print_topology, values.tag_output) == (True, True, False)
    assert (values.host, values.mpi_local_args, line.verbosity) == ("h[0-1]", ("-x A", "-x B"), 2)
    assert line.program == ("python3", "-u", "train.py", "--num-replicas", "3")


def test_every_option_of_poprun_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    listed = (
        "num-replicas num-instances ipus-per-replica vipu-partition mpi-local-args vipu-server-host reset-partition "
        "update-partition remove-partition host vipu-allocation executable-cache-path mpi-global-args "
        "vipu-server-timeout num-ilds sync-type vipu-server-port only-output-from-instance print-topology offline-mode "
        "numa-aware verbose vipu-partition-attempts import-config export-config overwrite-config help version nnodes "
        "node-rank rdzv-endpoint max-restarts log-dir tag-output version-format"
    )
    assert [name for name in listed.split() if f"--{name}" not in text] == []
    assert "--nnodes, --node-rank and --rdzv-endpoint" in " ".join(text.split())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main(["--version"]), main(["--version", "--version-format=json"])) == (0, 0)
    assert capsys.readouterr().out == f'poprun {__version__} (torchipu)\n{{"version": "{__version__}"}}\n'


@pytest.mark.parametrize(("words", "text"), [
    (["--version", "--version-format", "xml"], "--version-format must be text or json, got 'xml'"),
    (["--num-replicas", "3", "--num-instances=2", "x"],
     "--num-replicas 3 cannot be shared out among --num-instances 2.*per process"),
    (["--num", "2", "x"], "--num may mean --num-ilds, --num-instances, --num-replicas, --numa-aware"),
    (["--num-replica5", "2", "x"], "there is no option --num-replica5; did you mean '--num-replicas'"),
    (["--num-replicas", "two", "x"], "--num-replicas must be a whole number from 1, got 'two'"),
    (["--numa-aware=maybe", "x"], "--numa-aware must be yes, no, 1 or 0, got 'maybe'"),
    (["--num-replicas"], "--num-replicas needs a value"),
    (["--num-replicas", "2"], "there is no program to run"),
    (["--host", "a,b", "--num-instances=2", "--num-replicas=2", "x"], r"--host a,b does not name this host \("),
    (["--host", "a,a", "x"], "--host a,a names a more than once"),
    (["--host", "a[2", "x"], r"--host 'a\[2' cannot be read"),
    (["--nnodes=2", "--num-instances=2", "--num-replicas=2", "x"], "--nnodes 2 needs --node-rank"),
    (["--nnodes=2", "--node-rank=0", "--num-instances=2", "--num-replicas=2", "x"], "--nnodes 2 needs --rdzv-endpoint"),
    (["--nnodes=2", "--node-rank=0", "--num-instances=3", "--num-replicas=3", "x"], "be shared out among 2 hosts"),
    (["--only-output-from-instance=2", "--num-instances=2", "--num-replicas=2", "x"], "names none of 2 instances"),
    (["--mpi-global-args=-x", "x"], "-x needs the name of a variable"),
    (["--mpi-global-args='", "x"], "No closing quotation"),
    (["--import-config", "/no/such/file", "x"], "--import-config: /no/such/file cannot be read"),
])
def test_command_lines_that_cannot_be_are_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words) == 2
    assert re.search(text, capsys.readouterr().err)


def test_options_in_a_file_come_back_and_give_way_to_those_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "config.json"
    words = ["--num-instances=2", "--num-replicas=4", "--numa-aware", "--mpi-global-args=-x A=1"]
    assert main([*words, f"--export-config={file}"]) == 0
    line = arguments.parse(["--import-config", str(file), "--num-replicas=6", "train"])
    job = job_of(line)
    assert (job.num_instances, job.num_replicas, job.is_bound, job.environment) == (2, 6, True, {"A": "1"})
    assert main([*words, f"--export-config={file}"]) == 2
    assert f"the file {file} exists" in capsys.readouterr().err
    assert main(["--num-instances=1", f"--export-config={file}", "--overwrite-config=yes"]) == 0
    assert json.loads(file.read_text()) == {"num-instances": 1}
    file.write_text('{"num-instancs": 2}')
    with pytest.raises(OptionsError, match="there is no option 'num-instancs'; did you mean 'num-instances'"):
        arguments.parse(["--import-config", str(file), "train"])


@pytest.mark.parametrize(("text", "expected"), [
    ("a,b", ("a", "b")), ("h[0-2,4]", ("h0", "h1", "h2", "h4")), ("h[08-10].x", ("h08.x", "h09.x", "h10.x")),
    ("a,r[1-2]n[0-1]", ("a", "r1n0", "r1n1", "r2n0", "r2n1")),
])
def test_lists_of_hosts_are_expanded(text: str, expected: tuple[str, ...]) -> None:
    assert hosts.expand(text) == expected


@pytest.mark.parametrize(("num_instances", "nodes", "expected"), [
    (2, [[0, 1, 2, 3]], [(0, 1), (2, 3)]), (3, [[0, 1, 2, 3]], [(0,), (1,), (2, 3)]),
    (4, [[0, 1, 2, 3], [4, 5, 6, 7]], [(0, 1), (2, 3), (4, 5), (6, 7)]),
    (1, [[0, 1], [2, 3]], [(0, 1, 2, 3)]), (4, [[0, 1]], [(0,), (1,), (0,), (1,)]),
    (3, [[0, 1], [2, 3]], [(0,), (1,), (2, 3)]),
])
def test_instances_share_cpus_node_by_node(
    num_instances: int, nodes: list[list[int]], expected: list[tuple[int, ...]],
) -> None:
    assert cpus.shares(num_instances, nodes) == expected


def test_arguments_of_mpirun_are_followed_where_they_mean_something() -> None:
    found = read_mpi_arguments(["-x A=1 -x B --bind-to core", "--allow-run-as-root -tag-output"], {"B": "2"})
    assert (found.environment, found.tags_output, found.ignored) == ({"A": "1", "B": "2"}, True, ["--bind-to core"])
