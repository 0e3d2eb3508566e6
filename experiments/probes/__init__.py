"""Probes of a card, each in a process of its own, as trials are."""
