"""The table of op types names ops of TensorFlow, and the types that plans rest on."""

from collections import Counter

import pytest

from lms.tf import compat
from lms.tf.capture.bound_rules import Shapes
from lms.tf.capture.ops import BOUNDS, ROWS, SPLITS
from lms.tf.passes.split_rules import Shaped

pytestmark = pytest.mark.tf

# Number of types that have a fact: plans rest on them.
_TYPES = """cheap 92 part 73 inplace 70 product 19 alias 16 control 12 once 11 reduces 7
    persistent 7 reads 7 by_ref 4 reserves 3 loop 2 part1 1 collective 2 constant 1
    reads_state 1 replaces_state 1 view 5"""


def test_each_type_is_an_op_of_tensorflow_in_one_row() -> None:
    types = [op for *_, named in ROWS for op in named]
    assert len(types) == len(set(types))
    assert all(map(compat.has_op, types))


def test_facts_and_rules_name_as_many_types_as_plans_were_recorded_with() -> None:
    facts = Counter(fact for held, *_, named in ROWS for fact in held * len(named))
    told = iter(_TYPES.split())
    assert facts == {fact: int(next(told)) for fact in told}
    assert (len(BOUNDS), len(SPLITS)) == (157, 153)
    assert all(hasattr(Shapes, f"_{rule.split()[0]}") for rule in BOUNDS.values())
    assert all(hasattr(Shaped, f"_{rule}") for rule in SPLITS.values())
