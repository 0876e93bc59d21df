"""Jobs: enqueue, find, explain and repair."""
