"""The only code of lms that imports TensorFlow: trace, rewrite, rebuild, measure."""
