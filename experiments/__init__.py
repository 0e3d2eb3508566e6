"""One question per file: `run` writes results, `draw` reads results only."""
