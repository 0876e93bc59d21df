-- List the guards that have tallies.
SELECT DISTINCT scope, key FROM {p}tally
