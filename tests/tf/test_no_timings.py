"""Speed belongs to benchmarks: a busy machine must not fail a test."""

import re
from pathlib import Path

# One gives a run a deadline, one replaces the clock.
MAY = {
    Path(__file__).name,
    "test_microbenchmark.py",
    "test_gpu_validation.py",
}
CLOCKS = re.compile(r"\b(perf_counter|monotonic|process_time|thread_time|timeit)\b")


def test_no_test_reads_a_clock() -> None:
    tests = Path(__file__).parents[1]
    readers = [
        path.name
        for path in sorted(tests.rglob("*.py"))
        if path.name not in MAY and CLOCKS.search(path.read_text())
    ]
    assert readers == []
