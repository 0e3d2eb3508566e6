"""Rewrite a graph by a plan, and build a callable of the result."""
