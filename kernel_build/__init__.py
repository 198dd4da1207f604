"""How the kernels are built: C made of the table of kernels, compiled on all cores, linked to one extension."""
