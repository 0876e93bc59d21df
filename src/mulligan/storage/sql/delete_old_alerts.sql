-- Delete alerts that were resolved long ago, and silences that are over.
DELETE FROM {p}alert WHERE (state = 'resolved' AND acted = '' AND since < :before)
  OR (state = 'silenced' AND until < :before) RETURNING rule
