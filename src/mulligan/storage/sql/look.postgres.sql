-- Read everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
WITH RECURSIVE {part:waits}
{part:look}
