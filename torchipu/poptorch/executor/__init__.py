"""`PoplarExecutor`: what it knows, and the parts that compile, run, copy, store and tell."""
