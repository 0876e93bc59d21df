-- A checkpoint written since the last loss: this job gets ahead, so it is no poison.
UPDATE {p}job SET losses = 0 WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND losses > 0
