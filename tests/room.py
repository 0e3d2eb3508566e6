"""Budgets above what this process's card holds already: other tests leave something."""

import gc

from lms.units import parse_size

__all__ = ["above_what_is_held"]


def above_what_is_held(size: str | int) -> int:
    """Return a budget of `size` above the bytes in use on the card."""
    import tensorflow as tf

    gc.collect()
    held = tf.config.experimental.get_memory_info("GPU:0")["current"]
    return held + parse_size(size, name="size")
