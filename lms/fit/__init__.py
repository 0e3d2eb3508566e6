"""The two doors: Keras's `fit` with the callback, and `fit_in_memory`."""
