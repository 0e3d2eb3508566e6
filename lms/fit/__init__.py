"""Entry points: the Keras callback and `fit_in_memory`."""
