"""Reports: explanations drawn as images with Pillow, from plain values that belong to no metric."""
