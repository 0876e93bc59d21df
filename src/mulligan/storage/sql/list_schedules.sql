-- List all schedules.
SELECT {schedule} FROM {p}schedule ORDER BY name
