"""Program to values: the host plan, the buffers it works in, and the executors that run it."""
