"""How many elements to remove, by a measured value."""

import math

import pytest

from bmrjax.run.count_search import lowest


class Measured:
    """A function with a record of its arguments."""

    def __init__(self, function):
        self.function, self.asked = function, []

    def __call__(self, count):
        self.asked.append(count)
        return self.function(count)


@pytest.mark.parametrize("best", [1, 7, 50, 93, 100])
def test_of_a_proposal_the_best_part_goes(best):
    value = Measured(lambda count: abs(count - best))
    found = lowest(value, proposed=100, kept=1000)
    assert abs(found - best) <= max(2, 0.1 * best)
    assert max(value.asked) == 100
    assert len(value.asked) == len(set(value.asked)) <= 20


@pytest.mark.parametrize("best", [0, 1, 40, 999, 1000])
def test_where_nothing_is_proposed_more_goes_while_it_falls(best):
    found = lowest(Measured(lambda count: abs(count - best)), proposed=0, kept=1000)
    assert abs(found - best) <= 0.2 * best  # later rounds go on
    assert (found == 0) == (best == 0)


def test_nothing_goes_if_every_part_is_worse_or_not_a_number():
    assert lowest(lambda count: count, proposed=64, kept=100) == 0
    assert lowest(lambda count: math.nan if count else 1.0, proposed=64, kept=100) == 0
    assert lowest(lambda count: math.nan if count else 1.0, proposed=0, kept=100) == 0


def test_the_last_one_may_go():
    assert lowest(lambda count: -count, proposed=0, kept=0) == 0
    assert lowest(lambda count: -count, proposed=0, kept=1) == 1
    assert lowest(lambda count: -count, proposed=0, kept=10) == 10
