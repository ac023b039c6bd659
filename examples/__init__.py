"""Programs to start from; a package, since others install one of this name, which would come first."""
