"""Retries: policies, backoffs and the pure decision what happens after an attempt."""
