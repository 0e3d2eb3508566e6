"""TensorFlow's side of lms: capture, measure, rewrite and run training steps."""
