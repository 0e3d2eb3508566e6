"""A finding on the console: its table, then its sentence, as in docs/results.md."""

from rich.console import Console
from rich.table import Table

from experiments.report_findings import Finding

__all__ = ["show_finding"]


def show_finding(finding: Finding, *, width: int = 150) -> Console:
    """Print a finding; what else there is to say goes to the console returned.

    Args:
        finding: Its sentence and its table.
        width: Characters of a line.
    """
    said, (title, columns, body) = finding
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < 2 else "right")
    for row in body:
        table.add_row(*row)
    console = Console(width=width)
    console.print(table)
    console.print(said, highlight=False, soft_wrap=True)
    return console
