"""The options of a reduction, checked before any work."""

import fnmatch
from collections.abc import Mapping

from bmrjax.criteria import Shrinkage, SpikeAndSlab
from bmrjax.reduction import Normal
from bmrjax.streaming.folder import Pair
from bmrjax.streaming.solve import zeta_of

# Past this, e^ΔF does not fit single precision beside e^-ζ.
LARGEST_ZETA = 60.0


def scales_of(pairs: list[Pair], prior_scale: float | Mapping[str, float]) -> dict[str, float]:
    """Return the prior scale of each tensor.

    Args:
        pairs: The tensors.
        prior_scale: As `reduce_folder` takes it.

    Raises:
        ValueError: For scales out of range, and patterns that fit nothing or leave a tensor out.
    """
    patterns = dict(prior_scale) if isinstance(prior_scale, Mapping) else {"*": prior_scale}
    for pattern, scale in patterns.items():
        if not 1e-9 <= scale <= 1e9:
            raise ValueError(
                f"prior_scale: the standard deviation for '{pattern}' must be positive and within 1e-9 "
                f"and 1e9, got {scale}."
            )
    found, used = {}, set()
    for pair in pairs:
        fitting = [p for p in patterns if fnmatch.fnmatchcase(pair.name, p)]
        if not fitting:
            raise ValueError(
                f"prior_scale: no pattern of {list(patterns)} fits '{pair.name}'; add one, such as '*'."
            )
        found[pair.name] = float(patterns[fitting[0]])
        used.add(fitting[0])
    if unused := [p for p in patterns if p not in used]:
        raise ValueError(
            f"prior_scale: {unused} fits no tensor that an earlier pattern leaves; tensors are "
            f"{[pair.name for pair in pairs][:5]} …"
        )
    return found


def check_criterion(
    criterion: SpikeAndSlab | Shrinkage, scales: dict[str, float], total: int
) -> None:
    """Refuse a criterion that cannot be computed piece by piece, in single precision.

    Args:
        criterion: As `reduce_folder` takes it.
        scales: Of the priors, by tensor.
        total: Number of weights.

    Raises:
        TypeError: For another kind of criterion or family.
        ValueError: For one with groups, or with values out of range.
    """
    if not isinstance(criterion, SpikeAndSlab | Shrinkage):
        raise TypeError(
            "reduce_folder takes criteria.SpikeAndSlab or criteria.Shrinkage, got "
            f"{type(criterion).__name__}."
        )
    if criterion.family is not Normal:
        raise TypeError(
            f"reduce_folder reads normal posteriors, and the criterion {criterion.family.__name__} ones."
        )
    if criterion.groups is not None:
        raise ValueError("reduce_folder judges single weights; take a criterion without groups.")
    if isinstance(criterion, Shrinkage):
        smallest = min(scales.values())
        if not criterion.variance <= smallest**2:
            raise ValueError(
                f"Shrinkage(variance={criterion.variance}) is wider than the prior, whose scale is "
                f"{smallest}; give a smaller variance."
            )
        return
    ends = _zeta_range(float(criterion.alpha), float(criterion.beta), total)
    if max(map(abs, ends)) > LARGEST_ZETA:
        raise ValueError(
            f"SpikeAndSlab(alpha={criterion.alpha}, beta={criterion.beta}): ζ = ψ(α) - ψ(β) may reach "
            f"{max(ends, key=abs):.0f} nats, which single precision does not hold; give counts of 0.05 or "
            "more."
        )


def _zeta_range(alpha: float, beta: float, total: int) -> tuple[float, float]:
    return zeta_of(0.0, total, alpha, beta), zeta_of(float(total), total, alpha, beta)
