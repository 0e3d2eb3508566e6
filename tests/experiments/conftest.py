from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.ledger import write_lines

Draw = Callable[..., tuple[int, str]]


@pytest.fixture
def draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Draw:
    """Draws rows of a result file: the exit status, and what is said of them."""

    def drawn(main: Any, rows: Sequence[Any], **settings: Any) -> tuple[int, str]:
        results, figure = tmp_path / "rows.jsonl", tmp_path / "figure.png"
        write_lines(results, settings, list(rows))
        status = main(["draw", "--results", str(results), "--figure", str(figure)])
        assert figure.exists()
        return status, " ".join(capsys.readouterr().out.split())

    return drawn
