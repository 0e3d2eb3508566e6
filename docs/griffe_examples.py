"""Show examples of docstrings as programs: Griffe knows the word "Examples" alone."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Read "Example:" as "Examples:"."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was collected."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n")
