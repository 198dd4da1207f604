"""The placed graph to a device program: schedule, mapping, lowering, memory; its cycles, and a machine that runs it."""
