"""From a Python function to the graph of its step."""
