"""Undo copies of variables: the values are put back."""

import numpy as np
import pytest
import tensorflow as tf

from lms.tf.undo import KeptVariables

pytestmark = pytest.mark.tf


def test_kept_values_are_put_back() -> None:
    one, other = (tf.Variable(tf.ones([4])) for _ in range(2))
    kept = KeptVariables(((other.handle, other.dtype),))
    values = kept.values()
    one.assign_add([1.0] * 4)
    other.assign_add([1.0] * 4)
    kept.put_back(values)
    np.testing.assert_array_equal(one.numpy(), [2.0] * 4)
    np.testing.assert_array_equal(other.numpy(), [1.0] * 4)
