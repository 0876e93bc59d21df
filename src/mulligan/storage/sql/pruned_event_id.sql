-- Read the id up to which retention has pruned all events except actions of people.
SELECT value FROM {p}meta WHERE key = 'events_floor'
