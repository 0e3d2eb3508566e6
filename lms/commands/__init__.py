"""What the command line runs; `lms.__main__` parses. Loaded by the one command."""
