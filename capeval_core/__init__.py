"""Caption metrics over one shared core."""
