"""How ops are computed with channels in blocks, one file for each kind."""
