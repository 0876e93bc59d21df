"""Timelines of pictures and texts, rendered to videos: specification 003 on Mulligan."""
