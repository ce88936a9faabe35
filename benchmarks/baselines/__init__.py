"""Optimizers that Jorge is compared with."""
