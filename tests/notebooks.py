"""Run a notebook of docs/ in a kernel of its own, and keep what its cells show."""

import json
import sys
from pathlib import Path

import nbclient
import nbformat

__all__ = ["run"]


def run(path: Path, parameters: str, folder: Path) -> None:
    """Run all cells but the installation, with other parameters.

    Args:
        path: The notebook.
        parameters: Code in place of the cell tagged `parameters`.
        folder: Where the kernel works; `shown.json` there lists what each cell of code
            showed, as [{"text/plain": ...}, ...].
    """
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        tags = cell.metadata.get("tags", [])
        if "install" in tags or "parameters" in tags:
            cell.source = parameters if "parameters" in tags else ""
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(book, timeout=None, resources=where).execute()
    code = (cell for cell in book.cells if cell.cell_type == "code")
    shown = [[*map(_shown, cell.outputs)] for cell in code]
    (folder / "shown.json").write_text(json.dumps(shown))


def _shown(output: nbformat.NotebookNode) -> dict[str, str]:
    streamed = {"text/plain": output.get("text", "")}
    return dict(output.get("data", streamed))


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
