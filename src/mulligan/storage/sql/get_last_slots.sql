-- Find the newest past slot of each schedule.
SELECT s.schedule, s.slot, s.job_id FROM {p}schedule AS d
JOIN {p}slot AS s ON s.schedule = d.name
  AND s.slot = (SELECT max(slot) FROM {p}slot WHERE schedule = d.name AND slot <= :now)
