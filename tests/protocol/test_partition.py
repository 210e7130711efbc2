"""An update is divided by the elected positions and put together without loss."""

import numpy as np
import pytest

from paraaegis.errors import UpdateError
from paraaegis.protocol.partition import Partition

ORDER = np.array([4, 2, 0, 3, 1])
ELECTED = np.array([True, False, False, True, False])  # positions 0 and 3: parameters 4 and 3


def test_elected_positions_are_parameters_through_the_order():
    partition = Partition.of(ELECTED, ORDER)
    assert partition.elected.tolist() == [False, False, False, True, True]


def test_both_parts_are_in_parameter_order_the_outside_with_zeros_inside():
    inside, outside = Partition.of(ELECTED, ORDER).split(np.array([10, 11, 12, 13, 14]))
    assert inside.tolist() == [13, 14]
    assert outside.tolist() == [10, 11, 12, 0, 0]


def test_the_outside_travels_in_the_secret_order():
    partition = Partition.of(ELECTED, ORDER)
    assert partition.rest.tolist() == [2, 0, 1]  # positions 1, 2 and 4 are parameters 2, 0 and 1
    assert partition.merge(np.array([13, 14]), np.array([12, 10, 11])).tolist() == [10, 11, 12, 13, 14]


def test_an_outside_that_did_not_travel_is_zero():
    merged = Partition.of(ELECTED, ORDER).merge(np.array([13, 14]), None)
    assert merged.tolist() == [0, 0, 0, 13, 14]
    with pytest.raises(UpdateError, match="expected 2 elected values and a rest of 3, got 1 and 3"):
        Partition.of(ELECTED, ORDER).merge(np.array([13]), None)


def test_an_update_of_another_length_is_refused():
    with pytest.raises(UpdateError, match="should have 5 values, got 4"):
        Partition.of(ELECTED, ORDER).split(np.zeros(4))


@pytest.mark.parametrize(("inside", "outside"), [(1, 3), (2, 4), (3, 2), (0, 5)])
def test_parts_of_other_lengths_are_refused(inside, outside):
    with pytest.raises(UpdateError, match=f"expected 2 elected values and a rest of 3, got {inside} and {outside}"):
        Partition.of(ELECTED, ORDER).merge(np.zeros(inside), np.zeros(outside))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_merging_keeps_bits_and_kind(dtype):
    vector = np.array([0, -0.0, 1e-30, 7, -3]).astype(dtype)
    partition = Partition.of(ELECTED, ORDER)
    inside, outside = partition.split(vector)
    merged = partition.merge(inside, outside[partition.rest])
    assert merged.dtype == dtype
    assert merged.tobytes() == vector.tobytes()
