"""Planning time, measured and drawn at a small size."""

import pytest

from experiments.drawn_graphs import unet_like
from lms.ir.liveness import lower_bound, peak


def test_more_ops_are_more_layers_of_the_same_sizes() -> None:
    small, large = unet_like(500), unet_like(1000)
    assert (len(small.ops), len(large.ops)) == (500, 1000)
    assert lower_bound(small) == lower_bound(large)
    assert peak(large) > 1.5 * peak(small)


def test_too_few_ops_for_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="`ops` must be at least"):
        unet_like(10)
