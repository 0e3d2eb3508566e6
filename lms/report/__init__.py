"""Reports of steps, progress displays, figures."""
