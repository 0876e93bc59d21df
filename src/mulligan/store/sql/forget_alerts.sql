DELETE FROM {p}alert WHERE (state = 'resolved' AND acted = '' AND since < :before)
  OR (state = 'silenced' AND until < :before) RETURNING rule
