"""From a graph and a plan to a function that runs."""
