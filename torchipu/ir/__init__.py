"""The data structures of the compiler, one file a level: graph, schedule, mapping, program."""
