"""Explanations as images, with Pillow alone: blocks of plain values, whose meaning only a score knows."""
