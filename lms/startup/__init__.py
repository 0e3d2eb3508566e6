"""Code that runs before a program's first line on an emulated device."""
