"""The demo: a picture server with faults, and a page that orders each fault."""
