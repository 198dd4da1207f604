"""Which vertices a compute set has, and which elements each of them reads and writes, by shape of the work."""
