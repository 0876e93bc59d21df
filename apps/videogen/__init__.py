"""Videos from prompts, made by providers that fail: specification 002 on Mulligan."""
