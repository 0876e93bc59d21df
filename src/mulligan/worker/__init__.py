"""Workers: claim jobs, run them in child processes, settle how they ended."""
