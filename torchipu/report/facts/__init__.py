"""What a report tells, as tables: gathered from a program, written to ``profile.pop`` and read back from there."""
