"""Recognises what lies in place of a file whose data were not fetched.

Git LFS and git-annex keep large files elsewhere. A clone has a short text in place of
each file, or a link that leads nowhere until the data are fetched.

Sources: Git LFS's specification (spec/v1), git-annex's page on pointer files.
"""

from pathlib import Path

__all__ = ["dead_links", "is_dead_link", "not_fetched"]

# First bytes of the text that lies in place of a file.
_LFS, _ANNEX = b"version https://git-lfs", b"/annex/objects/"


def is_dead_link(path: Path) -> bool:
    """Tell whether a path is a link that leads nowhere."""
    return path.is_symlink() and not path.exists()


def dead_links(folder: Path) -> list[Path]:
    """List the links of a folder that lead nowhere, in the order of names."""
    dead = filter(is_dead_link, folder.iterdir())
    return sorted(path for path in dead if not path.name.startswith("."))


def not_fetched(path: Path) -> str:
    """Name what lies in place of a file's data, and a cure; "" if nothing does.

    Example:
        >>> not_fetched(Path(__file__))
        ''
    """
    cure = f"Fetch the data by `datalad get {path}` or `git annex get {path}`"
    if is_dead_link(path):
        if "annex" in path.readlink().parts:
            return f"a link into git-annex that leads nowhere. {cure}"
        return f"a link that leads nowhere. Mend {path}, or fetch its data"
    try:
        with path.open("rb") as file:
            first = file.read(len(_LFS))
    except OSError:
        return ""
    if first == _LFS:
        return "a pointer of Git LFS. Fetch the data by `git lfs pull` in their folder"
    return f"a pointer of git-annex. {cure}" if first.startswith(_ANNEX) else ""
