"""Optimizers to compare with."""
