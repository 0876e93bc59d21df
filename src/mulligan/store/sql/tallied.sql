SELECT DISTINCT scope, key FROM {p}tally
