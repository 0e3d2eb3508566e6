"""The case study: a 3D U-Net that segments brain tumours in whole volumes.

Importing `unet3d` imports neither TensorFlow nor Keras. Take what you need from its
modules: `unet3d.synthesis` (synthetic subjects on disk), `unet3d.data` (subjects to
arrays), `unet3d.model`, `unet3d.layers` and `unet3d.losses` (the network).
"""

__all__: list[str] = []
