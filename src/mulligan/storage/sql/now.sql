-- Read the clock.
SELECT :now
