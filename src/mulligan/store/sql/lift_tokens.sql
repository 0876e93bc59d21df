UPDATE {p}job SET token = token + :by RETURNING 1
