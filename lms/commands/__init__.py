"""Commands that `lms.__main__` parses; each loads what it needs when it runs."""
