"""Profiles of compiled programs, for people and for files."""
