"""Predictions of a step, made without it: memory by position, events by time."""
