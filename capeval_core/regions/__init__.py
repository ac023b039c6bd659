"""Images -> masks or boxes of regions: segmenters, detectors, rules and files."""
