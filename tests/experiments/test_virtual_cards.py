"""What is read off a dry card's trace; the page of results tests the finding."""

from pathlib import Path

import pytest

TRACE = """\
0 0.0 2.0 0.0 0 kernel
1 0.0 0.5 0.0 131072 the batch
1 1.0 3.0 0.9 131072 swapped in
2 2.5 2.6 2.5 4 the loss
2 4.0 5.0 4.0 200000 swapped out
"""


@pytest.mark.tf
def test_copies_are_counted_without_the_batch_and_half_of_one_is_hidden(
    tmp_path: Path,
) -> None:
    from experiments.virtual_cards_trial import read_trace

    path = tmp_path / "trace"
    path.write_text(TRACE)
    found = read_trace(path, [131072, 64])
    assert (found["copies_in"], found["copied_in_bytes"]) == (1, 131072)
    assert (found["copying_in_seconds"], found["hidden_in_seconds"]) == (2.0, 1.0)
    assert (found["copies_out"], found["copied_out_bytes"]) == (1, 200000)
    assert (found["busy_seconds"], found["hidden_out_seconds"]) == (2.0, 0.0)
