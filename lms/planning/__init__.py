"""Planners: from a graph and a room in bytes to a `SwapPlan`. No framework here."""
