"""What a model would take on a machine: compiled, and never run."""
