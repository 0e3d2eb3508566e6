"""The zoo: models that nobody of this project wrote, and how their users train them.

Each name stands for a function that builds a compiled model with random weights, and
data for three batches. Sizes are such that activations take most of the memory, and
that a training takes seconds. Seeds are fixed by who calls.

Nothing of `lms` is imported here: models are built before it is, as a user may.
"""

from experiments import zoo_applications, zoo_hub, zoo_mixed, zoo_own, zoo_small
from experiments.zoo_data import Maker, Ready

__all__ = ["MODELS", "SMALL", "Maker", "Ready"]

MODELS: dict[str, Maker] = {
    **zoo_applications.MODELS,
    **zoo_hub.MODELS,
    **zoo_own.MODELS,
    **zoo_mixed.MODELS,
}

# For tests: not of the zoo itself.
SMALL: dict[str, Maker] = zoo_small.MODELS
