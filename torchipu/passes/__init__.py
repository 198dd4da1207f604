"""Passes from valid IR to valid IR, one file each; ``compiler.py`` holds their order."""
