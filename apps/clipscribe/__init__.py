"""Analysis of videos with ffmpeg and a model: specification 004 on Mulligan."""
