"""Parts that measure nothing, for tests of the command."""
