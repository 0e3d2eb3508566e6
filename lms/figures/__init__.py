"""Draws plans and steps, from plain data. The only part of lms that draws."""

from lms.figures.lanes import draw_lanes
from lms.figures.memory import MemoryCurve, draw_memory

__all__ = ["MemoryCurve", "draw_lanes", "draw_memory"]
