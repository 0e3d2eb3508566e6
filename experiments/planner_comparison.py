"""How far down does each planner get?

One training step of the case study's U-Net is traced once. Then each plan is built
into it, run, and the peak of the device's allocator is measured:

    plain Keras     TensorFlow's own order, nothing swapped
    IBM's rule      at every setting of a grid; the best measured counts
    the callback    its planner, at the least budget that it does not refuse; then in
                    rooms from there to the plain peak: as it is, without second runs of
                    ops, with second runs wherever they can be, and in the order in
                    which TensorFlow lists the ops instead of its own schedule

The grid: all combinations of `swapout_threshold`, `swapin_ahead` and `swapin_groupby`
in the modes in which IBM's TFLMS runs if nothing is asked for (no sync, no
serialization), all measured. Then, for sync mode "both" and for serialization of all
levels, every combination is simulated, and the best few of each are measured, as are
the best few of the default measurements.

Three goals: the callback's peak is at most 1.4 times what no plan can go below (the
largest op's working set and persistent bytes), and at most 0.6 times the best peak that
IBM's rule reaches in its default modes; and in each of the rooms it swaps out, with
second runs wherever they can be, at most half the bytes of any of the rule's settings
in those modes whose measured peak is no higher. The second was set when the rule's best
peak was higher: it has come so near to what no plan can go below that 0.6 times it
cannot be reached by anyone.

Peaks are the allocator's, persistent bytes included. The first step is not counted: it
initialises. The card is emulated, with a limit that nothing comes near.

Known weakness: without serialization TensorFlow starts any ready op, so the rule's
peaks wander from run to run. Step times are of copies within host memory.
"""

from typing import Any

from experiments.planner_comparison_finding import finding, goals, plot
from experiments.question import DEVICE, Answer

__all__ = ["ANSWER", "main"]


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="512MiB", help="of the emulated device")
    parser.add_argument("--size", type=int, default=48, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    numbers = {"type": int, "nargs": "+"}
    thresholds = [1, 2, 5, 10, 20, 50, 100, 200, 400]
    parser.add_argument("--thresholds", default=thresholds, **numbers)
    parser.add_argument("--aheads", default=[1, 3, 10], **numbers)
    parser.add_argument("--groupbys", default=[0, 5], **numbers)
    parts = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    text = "rooms between, in parts of the plain peak"
    parser.add_argument("--parts", default=parts, type=float, nargs="*", help=text)
    parser.add_argument(
        "--few", type=int, default=3, help="how many best to go on with"
    )


def _run(options: Any) -> None:
    """Only this needs TensorFlow; what is drawn does not."""
    from experiments.planner_trials import run

    run(options)


ANSWER = Answer(
    name="planner_comparison",
    title="Memory, bytes and time of each planner",
    emulated=DEVICE,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=finding,
    plot=plot,
    goals=goals,
    in_device=True,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
