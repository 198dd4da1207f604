"""Reports of a compilation: what a program takes of the machine, as data, text and JSON."""

from torchipu.report.figures import CodeletUse, Figures, GenericOp, OpCycles
from torchipu.report.json import format_json, write_json
from torchipu.report.numerics import format_numerics, write_numerics
from torchipu.report.profile import Profile, profile_of
from torchipu.report.text import format_full, format_summary

__all__ = [
    "CodeletUse", "Figures", "GenericOp", "OpCycles", "Profile", "format_full", "format_json",
    "format_numerics", "format_summary", "profile_of", "write_json", "write_numerics",
]
