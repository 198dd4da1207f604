"""Faults put into the code, one at a time, to see whether tests notice: ``python -m tests.reliability mutants``."""
