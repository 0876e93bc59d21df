-- Read everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
WITH RECURSIVE {part:lanes_with_jobs}
{part:claim_state}
