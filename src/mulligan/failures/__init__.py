"""Failures: capture, classify, fingerprint and group what went wrong."""
