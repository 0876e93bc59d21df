"""Alerts: conditions that need a person, and automatic reactions to them."""
