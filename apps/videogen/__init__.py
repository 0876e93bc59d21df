"""Videos by prompt, made by providers that fail: the retries of seed 002 on Mulligan."""
