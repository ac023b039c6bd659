"""Tools of a checkout, not installed: drawn scenes, trainings of the tiny models, generated documents."""
