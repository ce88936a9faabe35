"""The demo: a small transformer on the bytes of Python's own sources."""
