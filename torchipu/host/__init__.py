"""The placed graph to values: a plan for the host, the buffers it works in, and the executor that runs it."""
