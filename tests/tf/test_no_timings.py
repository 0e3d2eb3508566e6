"""Speed belongs to benchmarks: a busy machine must not fail a test."""

import re
from pathlib import Path

# One gives a run a deadline, one replaces the clock, one times a card that is slow.
MAY = {
    "tf/test_no_timings.py",
    "tf/measure/test_bench.py",
    "experiments/test_gpu.py",
    "emulation/trials.py",
}
CLOCKS = re.compile(r"\b(perf_counter|monotonic|process_time|thread_time|timeit)\b")


def test_no_test_reads_a_clock() -> None:
    tests = Path(__file__).parents[1]
    readers = [
        name
        for path in sorted(tests.rglob("*.py"))
        if (name := str(path.relative_to(tests))) not in MAY
        and CLOCKS.search(path.read_text())
    ]
    assert readers == []
