"""Insight: statistics about retries and failures, and advice derived from them."""
