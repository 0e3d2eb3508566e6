"""Packages of the extra `unet3d`; where one is missing, the error names the extra."""

from lms.errors import extra

with extra("unet3d"):
    import nibabel
    from nibabel import orientations
    from nibabel.nifti1 import Nifti1Image, data_type_codes
    from scipy import ndimage

__all__ = ["Nifti1Image", "data_type_codes", "ndimage", "nibabel", "orientations"]
