-- From now on nobody may retry a member: some are gone already.
UPDATE {p}batch_progress SET leaving = true WHERE id = :id
