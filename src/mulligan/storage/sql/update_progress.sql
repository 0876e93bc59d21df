-- Store the progress of a running attempt, if it still holds its lease.
UPDATE {p}job SET progress = COALESCE(:progress, progress), progress_message = :message
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'
