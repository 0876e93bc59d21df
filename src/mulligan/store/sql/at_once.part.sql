(state = 'succeeded' AND (token = 1 OR ran_by IS NOT NULL))
