"""The models of the zoo, and the case study's network.

Each name stands for a function that builds a compiled model with random weights, and
data for a few batches; its arguments are sizes. By default activations take most of
the memory, and a training takes seconds. Nothing of `lms` is imported here.
"""

from importlib import import_module

from experiments.models.data import MODELS, Ready

__all__ = ["MODELS", "Ready"]

for _name in ("applications", "hub", "own", "sized"):
    import_module(f"{__name__}.{_name}")
