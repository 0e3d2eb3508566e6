"""Measurements of the present device, its link and host, and of ops."""
