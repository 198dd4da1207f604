"""Tests of the compile cache: that it is never wrong, and survives whatever happens to its files."""
