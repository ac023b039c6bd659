"""Scores computed again: bundles from which a score is replayed, and variants that explain another one."""
