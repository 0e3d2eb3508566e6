"""The case study: a 3D U-Net that segments brain tumours in whole volumes.

Importing `unet3d` imports neither TensorFlow nor Keras: take what you need from its
modules.
"""

__all__: list[str] = []
