"""Trainings of the small models that ship with the package."""
