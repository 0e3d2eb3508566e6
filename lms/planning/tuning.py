"""Every constant that tunes a planner, in one value, each with its reason.

They were found on steps of an emulated device (a CPU with TensorFlow's BFC allocator).
A change of any one changes plans: `tests/planning/test_recorded_plans.py` then fails.
"""

from dataclasses import dataclass

from lms.units import KIB, Bytes

__all__ = ["TUNING", "Tuning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Constants of the planners. Percentages are of the step's budget unless said.

    Args:
        margin_part: The device's limit less one part of so many is the budget where
            none is given: what the allocator loses, and what others take.
        taken_percent: Budgets that are tried in turn. What the allocator, small ops
            and input pipelines do is not known to the byte: a plan leaves room if it
            can.
        unordered_factor: Plain TensorFlow may need so many times its predicted peak,
            since it starts any ready op.
        surprising_factor: A step that fits in less than so many times its predicted
            peak is watched in its first calls.
        concurrent_scratch: Ops that TensorFlow starts at once may have their scratch at
            once: so many of the largest.
        loop_tensor: Loops that make tensors of so many bytes count as loops.
        beside_loops_percent: What a plan gets beside such loops: nobody orders their
            ops, and what was measured moved by a fifth between runs.
        loop_excess: Plain TensorFlow may exceed its predicted peak by such a part more
            where there are loops.
        autotuned_percent: Budgets that TFLMS's thresholds are searched for, until the
            allocator's peak is within all of it: the search knows bytes, and not what
            the allocator loses.
        rule_trigger_levels: Levels below `swapin_ahead` that are searched for a
            trigger: TFLMS's own constant.
        least_size_most: Smaller tensors never move; the least size is a part of the
            peak between this
        least_size_least: and this.
        coarse_part: First only tensors of at least one part of so many of the peak
            move: a copy of a smaller one frees little and costs as much to start.
        finer_factor: Where that does not fit, tensors so many times smaller than the
            usual least size move too.
        new_value_part: New values of variables are given room of their own up to one
            part of so many of the peak.
        eviction_rounds: How often eviction begins again with what it learned.
        eviction_rounds_large: How often it does so in a large graph after it got to
            the end.
        shrink_percent: Parts of the budget that eviction is given, until the allocator
            can place its plan.
        least_part: The least budget is looked for in steps of one part of so many.
        least_below: It takes plans made for so many steps below it, so that what moves
            does not go to its edge.
        compared_plans: Of so many plans that can be placed, the fastest is taken;
        alike_plans: so many of them alike in what may move;
        timed_plans: so many of the fastest are made faster still.
        about_as_fast: Plans that take at most so many times as long are as fast.
        early_tries: A copy is planned to take so many times its seconds, and copies
            that start early are given so many percent of the budget.
        early_effort: Ops of the orders that are tried, in all, to place early copies.
        region_percent: Regions that a plan is tried in: the budget and so many percent
            of the headroom more or less. What is in the way in the real one is not
            known to the byte.
        region_percent_large: The same for a large graph.
        region_least_percent: The smallest region.
        likely_percent: Regions that the likely peak is found in, as `region_percent`;
            smaller ones too, since batches lie in the middle of the real one.
        outliers_percent: So many percent of the lowest and of the highest peaks are
            left out; of fewer than ten, none.
        recompute_rounds: How often it is asked what might be recomputed: of what plans
            move, and at last of all that is idle at the peak.
        stalled_factor: A large graph gets one round, and another if its step takes so
            many times as long as its ops.
        recompute_deepest: Cheap ops that one tensor may need, aliases not counted.
        recompute_near_part: What is recomputed for one reader stays for others within
            one part of so many of the step.
    """

    margin_part: int = 32
    taken_percent: tuple[int, ...] = (86, 93, 100)
    unordered_factor: float = 1.15
    surprising_factor: float = 1.5
    concurrent_scratch: int = 2
    loop_tensor: Bytes = 64 * KIB
    beside_loops_percent: int = 75
    loop_excess: float = 0.10
    autotuned_percent: tuple[int, ...] = (100, 94, 88, 82)
    rule_trigger_levels: int = 10
    least_size_most: Bytes = 64 * KIB
    least_size_least: Bytes = 4 * KIB
    coarse_part: int = 200
    finer_factor: int = 4
    new_value_part: int = 32
    eviction_rounds: int = 12
    eviction_rounds_large: int = 4
    shrink_percent: tuple[int, ...] = (100, 97, 94, 90, 85)
    least_part: int = 16
    least_below: int = 5
    compared_plans: int = 3
    alike_plans: int = 2
    timed_plans: int = 2
    about_as_fast: float = 1.01
    early_tries: tuple[tuple[float, int], ...] = ((1.5, 80), (1.5, 100))
    early_effort: int = 45_000
    region_percent: tuple[int, ...] = (-60, -30, 0, 30, 60, 100, 120)
    region_percent_large: tuple[int, ...] = (-60, 0, 100)
    region_least_percent: int = 97
    likely_percent: tuple[int, ...] = tuple(range(-60, 121, 10))
    outliers_percent: int = 10
    recompute_rounds: int = 3
    stalled_factor: float = 1.1
    recompute_deepest: int = 8
    recompute_near_part: int = 32


TUNING = Tuning()
