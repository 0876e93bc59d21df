"""One file a screen: what it reads, what it makes of it, and its routes."""
