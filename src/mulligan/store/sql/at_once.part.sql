(state = 'succeeded' AND token = 1)
