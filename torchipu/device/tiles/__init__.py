"""The machine that runs a device program tile by tile, byte by byte."""
