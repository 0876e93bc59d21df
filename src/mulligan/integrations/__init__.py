"""Integrations with other libraries. Each imports its library when it is used."""
