-- Reset the losses of a job whose attempt saved a checkpoint: it makes progress between losses.
UPDATE {p}job SET losses = 0 WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND losses > 0
