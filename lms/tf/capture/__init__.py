"""Turn a Python function into the graph of a training step."""
