"""The command ``torchipu``: reads the command line and prints; what it prints is made elsewhere."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from torchipu import __version__
from torchipu.cli.flags import add_estimate, add_inputs, add_run, parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: Those after the name of the command; None takes them from ``sys.argv``.
    """
    flags = parsed(make_parser(), sys.argv[1:] if arguments is None else arguments)
    # A reader of a pipe may leave early, as head does.
    try:
        return int(flags.run(flags))
    except BrokenPipeError:
        sys.stderr.close()
        return 141


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; each subcommand sets ``run``."""
    parser = argparse.ArgumentParser(prog="torchipu", description="An emulated Graphcore IPU for PyTorch.")
    parser.add_argument("--version", action="version", version=f"torchipu {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    explain = commands.add_parser(
        "explain",
        help="say what becomes of a script or a model on the IPU",
        description="Run a script, or a function that takes no arguments, and say what was captured, where the graph "
        "breaks, which ops are generic, where ops are placed, and the cycles and memory that result. A function may "
        "also return (model, inputs).",
    )
    explain.add_argument(
        "--target", metavar="machine", help="emulate this machine, whatever the script says: a name, a name with "
        "fields to replace (bow,exchange_bytes_per_cycle=8), or a .toml file",
    )
    explain.add_argument("subject", metavar="script.py|module:function")
    explain.add_argument("arguments", nargs=argparse.REMAINDER, help="handed on to the script")
    explain.set_defaults(run=run_explain)

    report = commands.add_parser(
        "report",
        help="write reports of the programs of a script, or show reports that were written",
        description="Run a script and write a report of each program that it compiles for the IPU; or show those of a "
        "directory, or of one profile.pop. A report is a directory with report.html (all of it as pictures, in one "
        "file), profile.pop (a SQLite database), trace.json.gz (for ui.perfetto.dev) and summary.json. Flags stand "
        "before a script, whose arguments follow it.",
    )
    report.add_argument(
        "--output", metavar="DIRECTORY", help="where reports of a script go; report/NAME OF THE SCRIPT without it",
    )
    report.add_argument("--open", action="store_true", help="open report.html in the browser")
    report.add_argument(
        "--diff", metavar="DIRECTORY", help="compare with the report in this directory: prints what changed most, and "
        "writes compare.html",
    )
    add_inputs(report)
    report.add_argument("subject", metavar="script.py|model.onnx|directory")
    report.add_argument(
        "--what-if", type=_seconds, metavar="SECONDS", dest="what_if", help="for advice and alternatives of each "
        "program of a script, which are compiled; 3, and 0 leaves them out",
    )
    report.add_argument(
        "--fail-if", action="append", default=[], metavar="LIMIT", dest="fail_if", help="end with status 1 where a "
        "figure of summary.json is so, as in 'max_tile>95%%' or 'samples_per_second<1000'; may be repeated",
    )
    report.add_argument("arguments", nargs=argparse.REMAINDER, help="handed on to the script")
    report.set_defaults(run=run_report)

    check = commands.add_parser(
        "check",
        help="run the device programs of a script on a machine of emulated IPUs, beside the host",
        description="Run a script. The first call of each step is also made on a machine that runs the device program, "
        "op by op in float64, and refuses what no IPU may do; the first op whose values differ is told. Slow.",
    )
    check.add_argument("script", metavar="script.py")
    check.add_argument("arguments", nargs=argparse.REMAINDER, help="handed on to the script")
    check.set_defaults(run=run_check)

    add_estimate(commands).set_defaults(run=run_estimate)
    add_run(commands).set_defaults(run=run_model)

    targets = commands.add_parser("targets", help="list the machines that can be emulated, with the sources of numbers")
    targets.add_argument(
        "names", nargs="*", metavar="machine", help="machines to list: a name, a name with fields to replace "
        "(mk2,num_tiles=736), or a .toml file; all known ones when there is none",
    )
    targets.add_argument("--fields", action="store_true", help="list the fields that may be replaced instead")
    targets.set_defaults(run=run_targets)

    cache = commands.add_parser(
        "cache",
        help="list, check or empty the compile cache",
        description="The compile cache holds captures of models, so that another process need not capture them again. "
        "TORCHIPU_CACHE_DIR is its folder, TORCHIPU_CACHE_SIZE what it may grow to (1G), and TORCHIPU_CACHE=0 turns it "
        "off. ls lists its entries, the last used first; clear removes them; verify reads each one and holds it to its "
        "checksum.",
    )
    cache.add_argument("action", choices=("ls", "clear", "verify"))
    cache.set_defaults(run=run_cache)

    operators = commands.add_parser("operators", help="list the operators that have a record, as Markdown")
    operators.set_defaults(run=run_operators)

    poptorch = commands.add_parser("poptorch", help="list what PopTorch has and what of it is here, as Markdown")
    poptorch.set_defaults(run=run_poptorch)

    score = commands.add_parser(
        "score",
        help="compare the machine model with what was measured on IPUs",
        description="Compile the workload of every measurement that others published, and print by how much cycles, "
        "bytes and rates differ, the rows that are furthest off with what they are made of, and those that cannot be "
        "expressed. All of it takes some ten minutes; --kind amp-vertex --kind conv, or --rows 20, is quick.",
    )
    score.add_argument("--kind", action="append", default=[], metavar="NAME", help="only this kind; may be repeated")
    score.add_argument("--rows", type=_count, metavar="N", help="only N rows of each kind, spread evenly over all")
    score.add_argument("--worst", type=int, default=5, metavar="N", help="how many of the rows furthest off; 5")
    score.add_argument("--csv", metavar="FILE", help="write every row, with its prediction, to a file")
    score.add_argument("--write", metavar="FILE", help="write the page, as docs/score.md, to a file")
    score.set_defaults(run=run_score)
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {count}")
    return count


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds from 0, got {text}")
    return seconds


def run_explain(flags: argparse.Namespace) -> int:
    """Run ``torchipu explain``; 1 when the run ended early, 2 when there is nothing to run."""
    from torchipu.explanation import explain_function, explain_script
    from torchipu.options import emulating

    subject: str = flags.subject
    is_function = ":" in subject and not subject.endswith(".py")
    try:
        with emulating(flags.target):
            explanation = explain_function(subject) if is_function else explain_script(subject, flags.arguments)
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        print(f"torchipu explain: {error}", file=sys.stderr)
        return 2
    print(explanation.text())
    return 1 if explanation.error is not None else 0


def run_report(flags: argparse.Namespace) -> int:
    """Run ``torchipu report``; 1 when the run ended early or compiled nothing, 2 when there is nothing to show."""
    from torchipu.cli.report import print_reports
    from torchipu.errors import IpuError

    try:
        return print_reports(flags)
    except (OSError, ImportError, IpuError) as error:
        print(f"torchipu report: {error}", file=sys.stderr)
        return 2


def run_check(flags: argparse.Namespace) -> int:
    """Run ``torchipu check``; 1 when values differ or the run ended early, 2 when there is nothing to run."""
    from torchipu.checking.scripts import check_script

    try:
        checked = check_script(flags.script, flags.arguments)
    except FileNotFoundError as error:
        print(f"torchipu check: {error}", file=sys.stderr)
        return 2
    print(checked)
    return 0 if checked.is_equal else 1


def run_estimate(flags: argparse.Namespace) -> int:
    """Run ``torchipu estimate``; 1 when a program was not estimated or the run ended early, 2 for a wrong call."""
    from torchipu.cli.estimate import print_estimates
    from torchipu.errors import OptionsError

    if flags.script.endswith(".onnx"):
        return _of_onnx("estimate", "estimate_model", flags)
    try:
        estimated = print_estimates(flags)
    except (FileNotFoundError, OptionsError) as error:
        print(f"torchipu estimate: {error}", file=sys.stderr)
        return 2
    return 0 if estimated.is_complete else 1


def run_model(flags: argparse.Namespace) -> int:
    """Run ``torchipu run``; 2 when the model or what it is called with cannot be taken."""
    return _of_onnx("run", "run_model", flags)


def _of_onnx(command: str, function: str, flags: argparse.Namespace) -> int:
    """Call a function of ``torchipu.cli.onnx``, and tell in words what it refuses."""
    import torchipu.cli.onnx as door
    from torchipu.errors import IpuError

    try:
        getattr(door, function)(flags)
    except (OSError, ImportError, IpuError) as error:
        print(f"torchipu {command}: {error}", file=sys.stderr)
        return 2
    return 0


def run_cache(flags: argparse.Namespace) -> int:
    """Run ``torchipu cache``; 1 when an entry is damaged, 2 when the folder is none that is used."""
    from torchipu.cli.cache import print_cache
    from torchipu.errors import OptionsError

    try:
        return print_cache(flags.action)
    except (OSError, OptionsError) as error:
        print(f"torchipu cache: {error}", file=sys.stderr)
        return 2


def run_operators(flags: argparse.Namespace) -> int:
    """Run ``torchipu operators``."""
    from torchipu.cli.operators import page

    print(page(), end="")
    return 0


def run_poptorch(flags: argparse.Namespace) -> int:
    """Run ``torchipu poptorch``."""
    from torchipu.cli.compatibility import page

    print(page(), end="")
    return 0


def run_targets(flags: argparse.Namespace) -> int:
    """Run ``torchipu targets``; 2 when a machine is unknown."""
    from torchipu.cli.targets import print_fields, print_targets
    from torchipu.errors import OptionsError

    try:
        if flags.fields:
            print_fields()
        else:
            print_targets(flags.names)
    except OptionsError as error:
        print(f"torchipu targets: {error}", file=sys.stderr)
        return 2
    return 0


def run_score(flags: argparse.Namespace) -> int:
    """Run ``torchipu score``; 2 when a kind is unknown or a file of rows is damaged."""
    from torchipu.cli.score import print_scores
    from torchipu.errors import OptionsError, RowsError

    try:
        print_scores(flags.kind, rows=flags.rows, worst=flags.worst, csv=flags.csv, page=flags.write)
    except (OptionsError, RowsError) as error:
        print(f"torchipu score: {error}", file=sys.stderr)
        return 2
    return 0
