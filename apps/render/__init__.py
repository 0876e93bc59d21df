"""Timelines of pictures and words, rendered to videos: the failure handling of seed 003 on Mulligan."""
