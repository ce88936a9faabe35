"""Hostile files: a table of them, and the process that reads them."""
