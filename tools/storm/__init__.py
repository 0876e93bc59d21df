"""The fault storm: real processes, seeded faults, and a verdict from outside."""
