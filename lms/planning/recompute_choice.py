"""Which tensors are recomputed instead of being kept or moved.

A tensor that is long idle between two readers need not be kept if the op that made it
can run again just before the far readers. What that op reads must be there then: it may
be there anyway, be kept for longer, or be recomputed in turn, as far back as ops reach
that may run twice.

    conv ──> mul ──> add ──> relu ──> next conv ... gradients of relu, add, mul, conv
     kept    recomputed: mul', add', relu' in front of the gradient that reads them

Tensors are chosen one by one, the best bargain first, until the step fits: the most
bytes above the budget, over all ops of the step, for the least seconds. With what is
chosen others become cheaper (their sources are recomputed already) or worthless, so a
bargain is worked out anew before it is taken. This is DTR's rule - the bytes of a
tensor and how long it is idle, over the seconds that it costs (Kirisame et al., ICLR
2021) - with the future known. Bytes that come back too early count against it, so that
tensors which others are made from stay, as checkpoints do (Chen et al., 2016).

Known weakness: each op runs a second time at most, and choices are never taken back.
"""

import heapq
from collections.abc import Callable, Collection

from lms.ir.graph import GraphView
from lms.ir.liveness import Buffer
from lms.ir.recompute import Recomputed
from lms.machine.costs import Costs
from lms.planning.recompute_state import Chosen, StepAsItIs
from lms.planning.recompute_trial import bargain_of
from lms.planning.tuning import TUNING
from lms.units import Bytes, Seconds

__all__ = ["choose_recomputed"]


def choose_recomputed(  # noqa: PLR0913 - what a choice depends on
    graph: GraphView,
    candidates: Collection[str],
    costs: Costs,
    *,
    budget: Bytes,
    most: Callable[[Bytes], Seconds],
    least: Bytes = 0,
    cheap: bool = False,
) -> tuple[Recomputed, ...]:
    """Choose what to recompute so that a step fits.

    Args:
        graph: The step in the execution order to obey.
        candidates: Names of the root tensors that need not be kept.
        costs: Seconds of each op.
        budget: Bytes that the step may use. What remains above it is to be moved.
        most: How long it may take to make a tensor of some size again.
        least: Tensors of fewer bytes are kept instead of being recomputed: ops that
            touch no larger one are not ordered, and would run again at once.
        cheap: Whether only ops run again that take about as long as copying.

    Returns:
        Ops in execution order; empty if the step fits, or nothing can be recomputed in
        time.
    """
    step = StepAsItIs(graph, costs, least=least, cheap=cheap)
    chosen = Chosen(step)
    large = [
        step.buffers[root]
        for root in sorted(candidates)
        if step.buffers[root].size >= least and not step.buffers[root].pinned
    ]
    for _ in range(TUNING.recompute_rounds):
        before = len(chosen.second)
        _take_bargains(chosen, large, budget, most)
        if len(chosen.second) == before or not chosen.exceeds(budget):
            break
    return chosen.recomputed()


def _take_bargains(
    chosen: Chosen,
    candidates: Collection[Buffer],
    budget: Bytes,
    most: Callable[[Bytes], Seconds],
) -> None:
    """Choose tensors, the best bargain first, until the step fits or none is left."""
    found = ((bargain_of(chosen, b, budget, most), b) for b in candidates)
    queue = [(-bargain.worth, b.root) for bargain, b in found if bargain is not None]
    heapq.heapify(queue)
    while queue and chosen.exceeds(budget):
        _, root = heapq.heappop(queue)
        bargain = bargain_of(chosen, chosen.step.buffers[root], budget, most)
        if bargain is None:
            continue
        if queue and bargain.worth < -queue[0][0] * TUNING.about_as_good:
            heapq.heappush(queue, (-bargain.worth, root))
        else:
            chosen.take(bargain.change)
