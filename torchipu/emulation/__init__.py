"""Machines for device programs of captured models: what they compute ops with, and what they begin with."""
