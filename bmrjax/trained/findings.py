"""What is wrong with the data of a reduction, or may be."""

from bmrjax.run.diagnose import Finding
from bmrjax.trained.choice import TEMPERATURES, PathPoint


def few_rows(held_out: int, point: PathPoint) -> list[Finding]:
    """Return a finding if rows that were kept out are few."""
    if held_out >= 200:
        return []
    return [
        Finding(
            "few-rows",
            f"The network was chosen on {held_out} rows, which cannot tell an increase of the loss below "
            f"{1.6449 * point.standard_error:.3f} nats per row from none.",
            "Give more rows, or held_out=.",
        )
    ]


def temperature_at_bound(temperature: float) -> list[Finding]:
    """Return a finding if predicted losses are further from the measured ones than a temperature mends."""
    if min(TEMPERATURES) < temperature < max(TEMPERATURES):
        return []
    how = "less than a hundredth" if temperature > 1 else "more than a hundred times"
    return [
        Finding(
            "temperature-bound",
            f"The temperature ended at its bound of {temperature:g}: on the rows that were kept out, the "
            f"loss rises by {how} of what its curvature predicts. Predicted losses and the evidence mean "
            "little.",
            "Give held_out= rows like those of data, and check that loss= is in nats per row and that its "
            "root is that of its curvature.",
        )
    ]


def not_reached(name: str, wanted: float, reached: float) -> Finding:
    """Return the finding that all units that can be removed are, before the wanted share is reached."""
    return Finding(
        "not-reached",
        f"{name}={wanted:g} cannot be reached: no more units can be removed at {reached:.3g}.",
        "Lower limits or round_to, or ask for a larger share.",
    )


def not_cut(before: int, after: int, kept: float) -> list[Finding]:
    """Return a finding if arrays keep their sizes though units on them were removed.

    Args:
        before: Parameters of the given network.
        after: Of the smaller one.
        kept: Share of the parameters that stay without the units that were removed.
    """
    if after <= 1.02 * kept * before:
        return []
    return [
        Finding(
            "not-cut",
            f"The network has {after:,} of {before:,} parameters where {kept:.0%} would do: units that "
            "were removed are zero, and some of their arrays keep their sizes.",
            "print(result.compact) says which, and why: a size that the code has as a constant, for example.",
        )
    ]
