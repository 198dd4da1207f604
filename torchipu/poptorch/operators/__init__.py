"""Operators that models call, a file for each kind; `poptorch.ops` is the door to them."""
