"""Each module measures one thing and writes one JSON file; reporters only read."""

import os

# What is measured here is measured, and planned, anew.
os.environ.setdefault("LMS_CACHE", "off")
