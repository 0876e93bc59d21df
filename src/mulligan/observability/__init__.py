"""Shows how things are going: numbers, log lines, traces. Best effort: nothing here decides or delays anything."""
