"""Each module measures one thing and writes one JSON file; reporters only read."""
