"""The graph of a step and the plan for it, as plain data."""
