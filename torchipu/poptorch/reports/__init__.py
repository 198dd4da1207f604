"""What is told of a program and its runs: tensors by name, the program as text, times, profiles, trace points."""
