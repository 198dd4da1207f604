"""Sequences of ops that the host computes in one go, one file for each kind."""
