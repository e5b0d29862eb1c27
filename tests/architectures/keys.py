"""Random keys, one after another."""

import jax


def keys(key):
    """Yield keys without end."""
    while True:
        key, mine = jax.random.split(key)
        yield mine
