"""Draws plans and steps, from plain data. The only part of lms that draws."""

from lms.figures.memory import MemoryCurve, draw_memory
from lms.figures.timeline import draw_lanes

__all__ = ["MemoryCurve", "draw_lanes", "draw_memory"]
