"""What lies in files: executables, captured graphs, options and values, none of which executes when it is read."""
