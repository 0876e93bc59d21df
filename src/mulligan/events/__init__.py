"""Events: the audit log and event filters."""
