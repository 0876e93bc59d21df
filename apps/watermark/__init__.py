"""Watermark campaigns: one video, a copy with its own mark for every recipient."""
