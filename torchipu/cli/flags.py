"""The arguments of commands that have many; nothing else is imported before the command line is read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

OFTEN = ("replicas", "gradient_accumulation", "device_iterations", "available_memory", "micro_batch")
"""Options with a flag of their own; all others go through ``--set``."""


END = "--"
"""What follows goes to a script, whose arguments may look like ours."""


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the flags of a command line."""
    given = list(arguments)
    if given[:1] != ["estimate"]:
        return parser.parse_args(given)
    end = given.index(END) if END in given else len(given)
    flags, unknown = parser.parse_known_args(given[:end])
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}; what is meant for the script comes after {END}, as in "
                     f"torchipu estimate {getattr(flags, 'script', 'script.py')} {END} {' '.join(unknown)}")
    flags.arguments = given[end + 1 :]
    return flags


def add_estimate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command, and return its parser."""
    parser = commands.add_parser(
        "estimate",
        usage="torchipu estimate script.py|model.onnx [option ...] [-- argument of the script ...]",
        help="say what a script would take on a machine, without running its programs",
        description="Run a script. Its programs are compiled and never run: calls give zeros. Prints cycles, "
        "throughput, the memory of each IPU, what holds them up, and how far to trust that; with several values of an "
        "option a table, best first.",
    )
    parser.add_argument("script", metavar="script.py|model.onnx")
    parser.set_defaults(arguments=[])
    parser.add_argument(
        "--target", action="append", default=[], metavar="machine", help="a name, a name with fields to replace "
        "(bow,exchange_bytes_per_cycle=8), or a .toml file; may be repeated, for a table",
    )
    for name in OFTEN:
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="value", help="in place of the script's; several, with commas "
            "between them, for a table",
        )
    parser.add_argument(
        "--set", action="append", default=[], metavar="option=value", help="the same for any other option",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the first table to a file")
    add_inputs(parser)
    parser.add_argument(
        "--meta", action="store_true", help="put parameters on the meta device as the script makes them: models that "
        "no host holds; not for torch.compile, nor for scripts that compute with them",
    )
    return parser


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add what an ONNX model is called with."""
    parser.add_argument(
        "--input", action="append", default=[], metavar="name=FILE.npy", help="of an ONNX model: an input; random "
        "numbers without it",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="name=number", help="of an ONNX model: a size that it leaves "
        "open, such as batch",
    )


def add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command ``run``, and return its parser."""
    parser = commands.add_parser(
        "run",
        help="run an ONNX model once",
        description="Run an ONNX model once, print its outputs, cycles and memory. Needs the extra onnx.",
    )
    parser.add_argument("model", metavar="model.onnx")
    add_inputs(parser)
    parser.add_argument("--target", metavar="machine", help="a name, a name with fields to replace, or a .toml file")
    parser.add_argument("--output", metavar="DIRECTORY", help="write each output to a .npy file in it")
    return parser
