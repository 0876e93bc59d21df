-- Delete old token buckets of owners.
DELETE FROM {p}meter WHERE scope = 'owner' AND at < :before
