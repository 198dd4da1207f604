"""How convolutions are planned on the device: splits, vertices, memory; what products do not have."""
