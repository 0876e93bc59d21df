"""The page: what runs, what fails, what is done about it. It only reads."""
