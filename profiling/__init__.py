"""Each module measures one thing and writes one JSON file; reporters only read."""

import os

# Profilers measure and plan anew, without the cache.
os.environ.setdefault("LMS_CACHE", "off")
