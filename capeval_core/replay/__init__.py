"""Numbers made again: bundles that a score is replayed from, and the variant that explains another number."""
