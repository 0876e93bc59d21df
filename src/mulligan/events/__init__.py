"""Events: the log of everything that happened."""
