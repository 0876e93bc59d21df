"""Operations: one careful action on many jobs, step by step."""
