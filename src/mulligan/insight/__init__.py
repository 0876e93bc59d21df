"""Insight: statistics over many jobs."""
