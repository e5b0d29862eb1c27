"""Errors that carry what a run had reached."""

from typing import Any


class NonFiniteError(FloatingPointError):
    """Too many steps in a row had a loss or a gradient that was not finite.

    Attributes:
        result: A `Result` with the last good state.
    """

    def __init__(self, in_row: int, epoch: int, result: Any):
        super().__init__(
            f"{in_row} steps in a row, up to epoch {epoch}, had a loss or gradient that is not "
            "finite; they were skipped, and the last good state is in this error's `result`. Lower "
            "the learning rate, warm up the KL term (kl_warmup), or check the program for "
            "logarithms and divisions of zero."
        )
        self.result = result
