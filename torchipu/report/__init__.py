"""Reports of a compilation: what a program takes of the machine, as data, text and JSON."""

from torchipu.report.profile import CodeletUse, GenericOp, OpCycles, Profile, profile_of
from torchipu.report.text import format_full, format_summary

__all__ = ["CodeletUse", "GenericOp", "OpCycles", "Profile", "format_full", "format_summary", "profile_of"]
