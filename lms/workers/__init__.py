"""Training by several processes: joining, reducing over them, and Keras's callback."""
