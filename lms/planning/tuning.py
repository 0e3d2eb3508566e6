"""Every constant that tunes a planner, in one value, each with its reason.

The constants were found on steps of emulated cards. A change of one changes plans:
`tests/planning/test_recorded_plans.py` then fails.
"""

from dataclasses import dataclass, replace

from lms.units import KIB, MIB, Bytes, Seconds

__all__ = ["QUICK", "QUICK_SEALED", "THOROUGH", "TUNING", "Effort", "Tuning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Constants of the planners, grouped by purpose.

    A name ends in its unit: `percent` of something, a `part` (n stands for 1/n), a
    `factor`, or a number of `ops`, `rounds`, `plans`. Sizes are bytes.
    """

    # --------------------------------------------- memory that is left free for risks

    # Without a user's budget 1/32 of the device's limit stays free, for fragmentation
    # and for other programs.
    margin_part: int = 32
    # Steps are planned into 95 % of the budget, and into all of it if no such plan is
    # sure. Less means more copies, but a margin for the peak, which is not predicted to
    # the byte: allocator, small ops and input pipelines take memory of their own.
    taken_percent: int = 95
    # A sealed step is planned into 98 % of its room. The number is fitted: the arena is
    # known only when the step is built, and guard chunks and alignment take some of it.
    sealed_percent: int = 98
    # TensorFlow starts any ready op, so a step without a plan may need 1.15 times its
    # predicted peak. Larger: steps are planned that would have fitted without.
    unordered_factor: float = 1.15
    # A step without a plan is watched in its first calls, which takes time, unless 1.5
    # times its predicted peak fits.
    surprising_factor: float = 1.5
    # TensorFlow may run ops at once, each with its scratch: the 2 ops with most scratch
    # are counted.
    concurrent_scratch: int = 2

    # ----------------------------------------------- loops, whose ops are not ordered

    # Loops and branches count if they make a tensor of at least 64 KiB.
    loop_tensor: Bytes = 64 * KIB
    # Beside loops a plan gets 75 % of the budget. The rest is for the loops' memory in
    # other orders, which differed by a fifth between runs.
    beside_loops_percent: int = 75
    # With loops, a step without a plan may need 0.10 of its predicted peak more, beyond
    # `unordered_factor`.
    loop_excess: float = 0.10

    # ------------------------------------------- which tensors move, which are ordered

    # Tensors below 1/512 of the step's peak do not move, and their ops are not ordered:
    # a copy's fixed seconds and an edge cost more than the freed bytes are worth.
    worth_moving_part: int = 512
    # This least size is at most 64 KiB, where one copy's fixed seconds are about those
    # of its bytes;
    worth_moving_most: Bytes = 64 * KIB
    # and at least 4 KiB, in small models.
    worth_moving_least: Bytes = 4 * KIB
    # Plans come first that move no tensor below 1/200 of the peak: copies are fewer,
    # but the peak falls less.
    coarse_part: int = 200
    # Before them come plans that move no tensor which the link copies in 100 us: each
    # copy takes about as long besides, whatever its bytes.
    copy_seconds: Seconds = 100e-6

    # --------------------------------------------------------- chunks of small tensors

    # Small ops are not ordered, so some buffers live longer than the order says: there
    # are chunks for 125 % of the buffers that live at once, and one more.
    small_chunks_percent: int = 125
    # Large new values of variables get chunks only if all new values take at most 1/32
    # of the peak: no other tensor may use the chunks, but memory fragments less.
    new_value_part: int = 32
    # A capacity below 2 times the bytes of the chunks, beside free fragments, is not
    # planned for: too little would be left for large tensors.
    small_chunks_factor: int = 2

    # ---------------------------------------------------------------- seconds to plan

    # The walk of evictions begins anew, with its known evictions, at most 12 times.
    eviction_rounds: int = 12
    # Percentages of the budget that eviction gets in turn, until the allocator places
    # its plan in the whole budget. A smaller one moves more.
    shrink_percent: tuple[int, ...] = (100, 97, 94, 90, 85)
    # At most 2 of the plans that are compared by their seconds let tensors of the same
    # least size move: others may be faster.
    alike_plans: int = 2
    # Plans within 1.01 times the fastest plan's seconds compete by moved bytes, and the
    # fewest bytes win: other programs may use the link too.
    about_as_fast: float = 1.01

    # ------------------------------------------------------------- the least budget

    # The least budget of a sure plan is searched upward in steps of 1/16 of it: smaller
    # steps are more exact, but take longer.
    least_budget_part: int = 16
    # Smallest step of that search: 1/16 MiB.
    least_budget_step: Bytes = MIB // 16

    # ----------------------------------------------------------- copies that are early

    # Tries to start copies earlier: a factor on a copy's predicted seconds, and the
    # percentage of the plan's capacity that early copies may fill. More avoids stalls,
    # but the allocator may find no chunk.
    early_tries: tuple[tuple[float, int], ...] = ((1.5, 80), (1.5, 100))
    # To find copies that may start early, memory is played for 45,000 ops in all, as
    # often as the order goes into it,
    early_effort_ops: int = 45_000
    # but at least 2 times.
    early_plays: int = 2

    # ------------------------------------------------------ unknowns of the device

    # No region in which a plan is placed is smaller than 97 % of the budget.
    region_least_percent: int = 97

    # --------------------------------------------------------------- recomputation

    # Coordinates of the search, beside the order and the rule of eviction. Percentages
    # of the budget down to which tensors are moved or recomputed: fragmentation must
    # fit too.
    search_percent: tuple[int, ...] = (95, 85, 75, 60, 40, 0)
    # Percentages for sealed steps, which waste few bytes.
    search_sealed_percent: tuple[int, ...] = (100, 96, 92, 75, 50, 0)
    # Prices of a second of the link, in seconds of the device: a tensor that costs more
    # to recompute moves. At 1 the search chooses no tensors to move.
    search_prices: tuple[float, ...] = (1.0, 0.2, 0.1, 0.05, 0.02, 0.005)
    # Fractions of the step's seconds in which the link may be busy in each direction.
    search_shares: tuple[float, ...] = (0.1, 0.3, 0.6, 0.9)
    # The most rounds in which ops are chosen to be recomputed, earlier copies too.
    search_rounds: int = 3
    # Percentages of the budget that are planned for: in less, tensors may lie better.
    search_rooms: tuple[int, ...] = (100, 92, 85)
    # Ops in all the tries of a search, which take little effort: a step of many ops
    # gets few tries. Then the fewest and the most tries.
    search_effort_ops: int = 80_000
    search_tries: tuple[int, int] = (4, 60)
    # The best 2 choices are planned once more with all effort; a sealed step gets 2
    # more tries instead, which take less time.
    search_finals: int = 2
    # The tensors are gone through at most 3 times: a choice may enable others.
    recompute_rounds: int = 3
    # A chain of ops that run again for one tensor has at most 60 ops: for Python's
    # stack, and for seconds to plan.
    recompute_depth: int = 60
    # A source of at most 1/8 of the tensor that is recomputed from it is kept longer
    # and not recomputed too: this saves seconds for a few bytes.
    kept_part: int = 8
    # A tensor is taken if its benefit per cost is at least 0.98 of the best other one,
    # as last valued.
    about_as_good: float = 0.98

    # ---------------------------------------------------------------- IBM's rule

    # Percentages of the budget that thresholds are tuned for. TFLMS took 90 % of the
    # device's memory beside variables; the others follow where fragmentation needs
    # more than the rest.
    tuned_percent: tuple[int, ...] = (90, 85, 80, 75, 70)
    # 10 levels below `swapin_ahead` are searched for a trigger, as in TFLMS.
    rule_trigger_levels: int = 10


TUNING = Tuning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Seconds of planning against quality, for one choice of fates.

    Args:
        walks: The most walks of evictions that get to the end of the step.
        placed: The most plans to judge, among plans that are placed in the budget.
        compared: The most sure plans whose seconds are compared.
        early_tries: Number of `TUNING.early_tries` that are tried.
        region_percent: Percents of the headroom. Other programs' memory is not known to
            the byte, and best fit may fail in a larger region. A plan is sure if it is
            placed in regions of the budget and these: more mean fewer failures, but
            more refusals.
        packings: The most packings that are tried for a sealed step.
    """

    walks: int = TUNING.eviction_rounds
    placed: int = 1 << 30
    compared: int = 3
    early_tries: int = len(TUNING.early_tries)
    region_percent: tuple[int, ...] = (-60, -30, 0, 30, 60, 100, 120)
    packings: int = 80


THOROUGH = Effort()
QUICK = Effort(
    walks=4, placed=6, compared=1, early_tries=1, region_percent=(-60, 0, 100)
)
# Sealed plans need one judgement, so two can be compared.
QUICK_SEALED = replace(QUICK, compared=2, early_tries=2, packings=24)
