"""Every constant that tunes a planner, in one value, each with its reason.

They were found on steps of an emulated device (a CPU with TensorFlow's BFC allocator).
A change of any one changes plans: `tests/planning/test_recorded_plans.py` then fails.
"""

from dataclasses import dataclass

from lms.units import KIB, MIB, Bytes, Seconds

__all__ = ["QUICK", "THOROUGH", "TUNING", "Effort", "Tuning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Constants of the planners, grouped by what they trade.

    A name ends in its unit: `percent` of something, one `part` of so many of it, a
    `factor`, or a number of `ops`, `rounds`, `plans`. Sizes are bytes.
    """

    # -------------------------------------------- memory that is left free for doubts

    # Without a budget of the user's, one part of so many of the device's limit stays
    # free: for what the allocator loses, and for what others take.
    margin_part: int = 32
    # Percentages of the budget that are planned for in turn, until a plan is sure. More
    # copies, against a peak that is not predicted to the byte: allocator, small ops and
    # input pipelines take their own.
    taken_percent: tuple[int, ...] = (95, 100)
    # TensorFlow starts any ready op, so a step without a plan may need so many times
    # its predicted peak. Larger: steps are planned that would have fitted as they are.
    unordered_factor: float = 1.15
    # A step without a plan is watched in its first calls, which takes time, unless so
    # many times its predicted peak fits.
    surprising_factor: float = 1.5
    # TensorFlow may run ops at once, each with its scratch: so many of those with most
    # scratch are counted.
    concurrent_scratch: int = 2

    # ------------------------------------------------- loops, whose ops nobody orders

    # Loops and branches count if they make a tensor of so many bytes.
    loop_tensor: Bytes = 64 * KIB
    # Beside them a plan gets so many percent of the budget: the rest is for what they
    # take in other orders, which moved by a fifth between runs.
    beside_loops_percent: int = 75
    # A step without a plan may exceed its predicted peak by so large a part of it, in
    # addition to `unordered_factor`.
    loop_excess: float = 0.10

    # ------------------------------------------- which tensors move, which are ordered

    # Tensors below one part of so many of the step's peak neither move nor are ordered:
    # a copy's fixed cost and an edge cost more than what they free.
    worth_moving_part: int = 512
    # This least size is at most so many bytes, where one copy's fixed cost is about
    # that of its bytes;
    worth_moving_most: Bytes = 64 * KIB
    # and at least so many, in small models.
    worth_moving_least: Bytes = 4 * KIB
    # Plans are made first that move no tensor below one part of so many of the peak:
    # fewer and longer copies, against a peak that gets less low.
    coarse_part: int = 200
    # Before that, plans are made that move none which the link carries in so many
    # seconds: each copy takes about as long besides, whatever its bytes.
    copy_seconds: Seconds = 100e-6

    # --------------------------------------------------------- chunks of small tensors

    # Small ops are not ordered, so some buffers live longer than the order says: there
    # are chunks for so many percent of those that live at once, and one more.
    small_chunks_percent: int = 125
    # New values of variables that are large get chunks only if all of them are at most
    # one part of so many of the peak: chunks nobody else may use, against holes between
    # large tensors.
    new_value_part: int = 32
    # A part of the budget below so many times the chunks is not planned for: what is
    # left for large tensors would be too little.
    small_chunks_factor: int = 2

    # ---------------------------------------------------------------- seconds to plan

    # Eviction begins again with what it learned at most so often.
    eviction_rounds: int = 12
    # Parts of the budget that eviction is given in turn, until the allocator places its
    # plan in the whole: what it gets less is moved more.
    shrink_percent: tuple[int, ...] = (100, 97, 94, 90, 85)
    # The most plans of one choice that are placed, and then compared by their seconds.
    compared_plans: int = 3
    # At most so many of them let the same tensors move: others may be faster.
    alike_plans: int = 2
    # Of plans that take at most so many times as long as the fastest one, that which
    # moves the fewest bytes is taken: others may use the link too.
    about_as_fast: float = 1.01

    # ------------------------------------------------------------- the least budget

    # The least budget in which a plan is sure is looked for in steps of one part of so
    # many of it, upward: how exact it is, against seconds.
    least_budget_part: int = 16
    # No step is smaller than so many bytes.
    least_budget_step: Bytes = MIB // 16
    # In each, plans count that were made for up to so many steps less: what moves does
    # not go to the edge then, where a waiting batch is one too many.
    least_budget_below: int = 5
    # Then less is tried, in percent of it, with ops that run twice, until there is no
    # sure plan; the last room but one counts: what is measured differs a little from
    # process to process, and a budget that is named must work.
    least_recompute_percent: tuple[int, ...] = (95, 90, 85, 80, 75, 70, 65, 60, 55, 50)

    # ----------------------------------------------------------- copies that are early

    # Tries to start copies earlier: a factor for a copy's predicted seconds, and the
    # percent of the plan's capacity that early copies may fill. Steps that do not wait,
    # against places that the allocator may lack.
    early_tries: tuple[tuple[float, int], ...] = ((1.5, 80), (1.5, 100))
    # Memory is played for so many ops in all to find which copies may start early: as
    # often as the order goes into it,
    early_effort_ops: int = 45_000
    # and so often at least.
    early_plays: int = 2

    # ---------------------------------------------- what is not known of the device

    # Memory that others hold is not known to the byte, and best fit may fail in a
    # larger region. A plan is sure if it is placed in regions of the budget and so many
    # percent of the headroom more: fewer bad surprises, against plans that are refused.
    region_percent: tuple[int, ...] = (-60, -30, 0, 30, 60, 100, 120)
    # No region is smaller than so many percent of the budget.
    region_least_percent: int = 97
    # The likely peak is the middle of those in the budget and so many percent of the
    # headroom more. Here no size is too small: batches lie in the middle of a region.
    likely_percent: tuple[int, ...] = tuple(range(-60, 121, 10))
    # So many percent of the lowest and of the highest peaks do not count for it; of
    # fewer than ten, all do.
    outliers_percent: int = 10

    # --------------------------------------------------------------- recomputation

    # The search changes these four, the order, and how holes are made. Percent of the
    # budget down to which tensors are moved or recomputed: what the allocator loses is
    # to fit too.
    search_percent: tuple[int, ...] = (95, 85, 75, 60, 40, 0)
    # Prices of a second of the link, in seconds of the device: what costs more to
    # recompute moves. At 1 the search chooses nothing to move.
    search_prices: tuple[float, ...] = (1.0, 0.2, 0.1, 0.05, 0.02, 0.005)
    # Parts of the step's seconds in which the link may be busy in each direction.
    search_shares: tuple[float, ...] = (0.1, 0.3, 0.6, 0.9)
    # Times that ops are chosen to be recomputed, copies of earlier times among them.
    search_rounds: int = 3
    # Percent of the budget that is planned for: with less, tensors may lie better.
    search_rooms: tuple[int, ...] = (100, 92, 85)
    # Ops in all the tries of a search, which are made with little effort: so a step of
    # many ops gets few. Then the fewest and the most tries.
    search_effort_ops: int = 80_000
    search_tries: tuple[int, int] = (4, 60)
    # Choices that are planned once more with all effort: the best.
    search_finals: int = 2
    # So often all tensors are gone through: with what was chosen others can be.
    recompute_rounds: int = 3
    # Chains of ops that run again for one tensor have at most so many: Python's stack,
    # and seconds to plan.
    recompute_depth: int = 60
    # A source that is at most one part of so many of what is recomputed of it is kept
    # for longer and not recomputed too: seconds, against a few bytes.
    kept_part: int = 8
    # A tensor is taken if no other was so many times as good a bargain when last
    # looked at.
    about_as_good: float = 0.98

    # ---------------------------------------------------------------- IBM's rule

    # Percentages of the room that thresholds are tuned for. TFLMS took 90 of what
    # variables leave of the device's memory; the others follow where the allocator,
    # which loses room between tensors, needs more than all of it.
    tuned_percent: tuple[int, ...] = (90, 85, 80, 75, 70)
    # So many levels below `swapin_ahead` are searched for a trigger: TFLMS's own.
    rule_trigger_levels: int = 10


TUNING = Tuning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Seconds of planning against quality, for one choice of what moves.

    Args:
        walks: Eviction gets to the end of the step at most so often.
        placed: The most plans to look at, of those that are placed in the budget.
        compared: The most sure plans whose seconds are compared.
        early_tries: How many ways to start copies earlier are tried.
        region_percent: A plan is sure if it is placed in regions of the budget and so
            many percent of the headroom more.
    """

    walks: int = TUNING.eviction_rounds
    placed: int = 1 << 30
    compared: int = TUNING.compared_plans
    early_tries: int = len(TUNING.early_tries)
    region_percent: tuple[int, ...] = TUNING.region_percent


THOROUGH = Effort()
QUICK = Effort(
    walks=4, placed=6, compared=1, early_tries=1, region_percent=(-60, 0, 100)
)
