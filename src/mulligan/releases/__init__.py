"""Releases: which one broke a kind, in which one a cause is fixed, and which one must wait."""
