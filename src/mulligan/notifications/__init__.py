"""Tells people and programs: event rows become deliveries, and a delivery is a job like any other."""
