"""Bad input and faults: what a user gets in each case, that nothing is lost, and that the next call works."""
