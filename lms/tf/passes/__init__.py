"""Rewrite passes: each changes a traced graph in one way, and keeps its numbers."""
