"""A model on the host and on the machine that runs its device program, and what differs between the two."""
