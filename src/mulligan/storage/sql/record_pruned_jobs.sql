-- Record how many jobs retention removed.
INSERT INTO {p}pruned (at, kind, state, owner, code, count, first_id, last_id)
VALUES (:at, :kind, :state, :owner, :code, :jobs, :first_id, :last_id)
