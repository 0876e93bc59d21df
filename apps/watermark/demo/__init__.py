"""The demo: example campaigns and a mail server that keeps what it receives."""
