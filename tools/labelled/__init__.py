"""Errors as they really occur, each labelled by hand and with its public source, and the scorer that reads them."""
