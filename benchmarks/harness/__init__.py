"""Shared machinery: running studies, results with provenance, steady timings."""
