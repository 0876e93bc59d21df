"""Durable steps: calls of a job whose results outlive the attempt."""
