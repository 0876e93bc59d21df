"""Manifest: the app as data, shared by workers, web and command line."""
