"""Planners: from a graph and a budget in bytes to a `SwapPlan`."""
