"""What runs a device program as IPUs would: variable by variable, with real copies, and stricter than the machine."""
