"""Reports from plain values that belong to no metric: pages with Jinja2, images with Pillow."""
