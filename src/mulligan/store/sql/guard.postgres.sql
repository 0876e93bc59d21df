-- Locked until the fold is written. Nobody waits: who finds it in another hand leaves a tally.
SELECT {guard} FROM {p}guard WHERE scope = :scope AND key = :key FOR UPDATE SKIP LOCKED
