"""Predictions of a step before it runs: memory by position, events by time."""
