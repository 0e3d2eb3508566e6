"""One question per file: `run` writes results, `draw` reads results only."""

import os

# What is measured here is measured, and planned, anew.
os.environ.setdefault("LMS_CACHE", "off")
