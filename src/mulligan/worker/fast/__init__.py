"""Accelerators of claim, settle and enqueue."""
