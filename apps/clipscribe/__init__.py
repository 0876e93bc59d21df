"""What is said and seen in videos, found with ffmpeg and a model: the failure handling of seed 004 on Mulligan."""
