"""Tests of torchipu, laid out as the package is."""
