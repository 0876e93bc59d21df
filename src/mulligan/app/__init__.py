"""The app object that developers create, its decorators and services."""
