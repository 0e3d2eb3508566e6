"""The form of an answer: plain data, made of rows alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.charts import Panel
from profiling.tables import Table

__all__ = ["Answer", "Verdict", "sentences"]

# A claim: True if it holds, None where that is undecided; and a sentence of it.
Verdict = tuple[bool | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer that rows give to a question.

    Args:
        finding: A few sentences.
        table: At most eight rows.
        more: Full tables, for a page of their own.
        verdicts: What holds, what does not, and what is undecided.
        panels: The figure, from the top down.
        headline: Of the figure.
    """

    finding: str
    table: Table
    more: Sequence[Table] = ()
    verdicts: Sequence[Verdict] = ()
    panels: Sequence[Sequence[Panel]] = ()
    headline: str = ""


def sentences(verdicts: Iterable[Verdict]) -> str:
    """Claims as sentences.

    Example:
        >>> sentences([(True, "it holds"), (None, "IBM's may")])
        "It holds. IBM's may."
    """
    return " ".join(f"{text[:1].upper()}{text[1:]}." for _, text in verdicts)
