"""Whether two results are the same to the last bit, but for times."""

import jax
import numpy as np


def assert_same(found, expected):
    points = [[(p.params, p.keep) for p in r.path] for r in (found, expected)]
    pairs = [(found.params, expected.params), (found.keep, expected.keep), points]
    for left, right in pairs:
        assert jax.tree.structure(left) == jax.tree.structure(right)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_array_equal(a, b)
    rows = [
        [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in r.history]
        for r in (found, expected)
    ]
    assert rows[0] == rows[1]
    numbers = [[(p.epoch, p.vfe, p.kept, p.metrics) for p in r.path] for r in (found, expected)]
    assert numbers[0] == numbers[1]
    assert (found.metrics, found.vfe) == (expected.metrics, expected.vfe)
