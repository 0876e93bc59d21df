"""Alerts: rules that compare measured values with thresholds, report and act."""
