"""How long tests let processes take."""

SOON = 40.0
"""Seconds in which what ends a wait has ended it, on a machine that is busy with other tests.

Nothing else would have ended it within 60.
"""
