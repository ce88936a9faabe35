"""Attacks on the package."""
