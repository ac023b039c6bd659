"""Explanations as pictures, with Pillow alone."""
