"""What is wrong with a run, and what to do about it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmrjax.errors import FitWarning, warn

# Findings of which `sparsify` warns; the others are shown by `print(result)` only.
SERIOUS = ("constant", "dead-layer", "no-better-than-trivial", "not-converged")

# Mean change of the log density of a row, in nats, when it gets the inputs of another row.
_NO_DEPENDENCE = 1e-4


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be, with a run.

    Attributes:
        code: Short name, such as ``"not-converged"``; stable, for programs that read it.
        message: What was found, with the numbers.
        advice: What to do.

    Example:
        >>> import bmrjax as bmr
        >>> rows = [{"vfe": 1000.0 / epoch, "steps": 10} for epoch in range(1, 9)]
        >>> finding = bmr.Result({}, {}, {}, 100, history=rows).diagnose()[0]
        >>> finding.code
        'not-converged'
        >>> print(finding.message)
        The loss was still falling: by 74.6 nats over 4 epochs (40 steps) at the full learning rate.
        >>> finding.advice
        'Take about 100 steps more ...'
    """

    code: str
    message: str
    advice: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.code}: {self.message} {self.advice}"


def diagnose(result: Any) -> list[Finding]:
    """Return the findings on a `Result`; see `Result.diagnose`."""
    found: list[Finding] = []
    for check in _CHECKS:
        found += check(result, [finding.code for finding in found])
    return found


def warn_of(findings: Sequence[Finding]) -> None:
    """Emit a `FitWarning` for each serious finding."""
    for finding in findings:
        if finding.code in SERIOUS:
            warn(f"sparsify: {finding}", FitWarning)


# --- the fit ------------------------------------------------------------------------------


def _not_converged(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    del codes
    rows = [row for row in result.history if not row.get("taken_back")]
    window, after = _steady(rows)
    losses = np.array([row["vfe"] for row in window], float)
    if len(losses) < 4 or not np.isfinite(losses).all():
        return
    fall, noise = _fall(losses)
    # Two nats, or a two-hundredth of a nat per data point, do not change what is concluded.
    matters = max(2.0, 0.005 * result.num_data)
    left, ratio = _left_to_fall(losses, after)
    if fall <= max(matters, 3 * noise) or left <= matters:
        return
    steps, taken = (sum(row.get("steps", 1) for row in some) for some in (window, rows))
    thirds = math.log(matters / left) / math.log(ratio) if ratio < 0.95 else 30.0
    more = math.ceil(max(steps / 3 * min(thirds, 30.0), steps, taken / 5))
    more = round(more, 1 - len(str(more)))
    yield Finding(
        "not-converged",
        f"The loss was still falling: by {fall:.3g} nats over {len(window)} epochs ({steps} steps) at the "
        "full learning rate.",
        f"Take about {more} steps more than the {taken} of this run (num_epochs or steps_per_epoch), or a "
        "higher learning rate, such as optimizer=optax.adabelief(3e-2).",
    )


def _steady(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], float]:
    """Return epochs at the full rate with one number of kept elements, and how many epochs came after.

    Reductions lower the loss too, and so does a falling learning rate; neither says anything about
    convergence. Epochs after are counted by their rate. They are at most as many as the steady ones, or else
    those do not tell how the run ended, and none are returned.
    """
    full = max((row.get("rate", 1.0) for row in rows), default=1.0)
    after, segment = 0.0, []
    for row in reversed(rows):
        steady = row.get("rate", 1.0) == full
        if steady and (not segment or row.get("kept") == segment[-1].get("kept")):
            segment.append(row)
        elif len(segment) >= 4:
            break
        else:
            after += len(segment)
            segment = [row] if steady else []
            after += 0.0 if steady else row.get("rate", 1.0) / full
    if len(segment) < max(4, after):
        return [], 0.0
    return segment[: max(4, math.ceil(len(segment) / 3))][::-1], after


def _fall(losses: np.ndarray) -> tuple[float, float]:
    """Return by how much a straight line through the losses falls, and the standard error of that."""
    at = np.arange(len(losses)) - (len(losses) - 1) / 2
    squares = float(np.sum(at**2))
    slope = float(np.sum(at * losses) / squares)
    rest = losses - losses.mean() - slope * at
    error = math.sqrt(float(np.sum(rest**2)) / max(1, len(losses) - 2) / squares)
    return -slope * (len(losses) - 1), error * (len(losses) - 1)


def _left_to_fall(losses: np.ndarray, after: float) -> tuple[float, float]:
    """Return how far a loss has still to fall, `after` more epochs, and its ratio from third to third.

    The thirds of the window fall by a constant ratio, as they do where convergence is geometric.
    """
    size = len(losses) // 3
    first, second, third = losses[-3 * size :].reshape(3, size).mean(1).tolist()
    before, last = first - second, second - third
    if last <= 0:
        return 0.0, 0.0
    ratio = min(max(last / before, 0.05), 1.0) if before > 0 else 1.0
    if ratio >= 0.95:
        return math.inf, 1.0
    return last * ratio / (1 - ratio) * ratio ** (0.5 + after / size), ratio


def _skipped(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    del codes
    steps = sum(row.get("steps", 1) for row in result.history)
    if result.num_skipped and steps:
        yield Finding(
            "skipped-steps",
            f"{result.num_skipped} of {steps} steps were skipped, because their loss or gradient was not "
            "finite.",
            "Lower the learning rate, warm up the KL term (FitOptions(kl_warmup=...)), or look for "
            "logarithms and divisions of zero in the program.",
        )


# --- the reduction ------------------------------------------------------------------------


def _rounds(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    reduced = any("reduce_seconds" in row for row in result.history)
    if not reduced or not result.num_total or result.num_kept < result.num_total:
        return
    rows = [row for row in result.history if row.get("taken_back")]
    undone = any(row.get("kept", 0) < result.num_total for row in rows)
    undone = undone or any(
        point.taken_back and point.kept < result.num_total for point in result.path
    )
    if undone:
        yield Finding(
            "rounds-taken-back",
            "Every round of reduction was taken back, because the free energy did not fall after it.",
            "Give rounds longer to re-fit or make them smaller (schedules.Verified(refit=..., "
            "fraction=0.1)), or use a joint posterior, guide=infer.AutoMultivariate(program), if the "
            "elements are correlated. If all of them matter, this is the right answer.",
        )
        return
    why = "the evidence supports every element, or the run ended before the criterion proposed a removal"
    advice = (
        "Look at result.posterior(): elements far from zero, compared with their scale, matter."
    )
    if "not-converged" in codes:
        why = "the fit had not converged, and a posterior that is still wide proposes nothing"
        advice = "Take more steps first."
    yield Finding("nothing-removed", f"No element was removed: {why}.", advice)


def _dead_layers(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    del codes
    dependence = result.facts.get("dependence")
    if dependence is not None and dependence > _NO_DEPENDENCE:
        return  # information passes by the layer, as in a residual network
    weights: dict[str, list[np.ndarray]] = {}
    for name, mask in result.keep.items():
        layer = result.layers.get(name, name)
        if layer != name and np.ndim(mask) > 1:
            weights.setdefault(layer, []).append(np.asarray(mask))
    left = {layer: int(sum(mask.sum() for mask in masks)) for layer, masks in weights.items()}
    dead = [layer for layer, kept in left.items() if kept == 0]
    if dead and len(dead) < len(left):
        others = {layer: kept for layer, kept in left.items() if kept}
        name, kept = max(others.items(), key=lambda item: item[1])
        yield Finding(
            "dead-layer",
            f"All weights of {_listed(dead)} were removed, so that nothing passes through, while "
            f"'{name}' still has {kept}.",
            "Use fewer or narrower layers, more steps before the first round (schedules.Verified(wait=...)), "
            "or criterion=criteria.Shrinkage(), which removes less.",
        )


# --- the predictions ----------------------------------------------------------------------


def _constant(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    dependence = result.facts.get("dependence")
    if dependence is None or dependence > _NO_DEPENDENCE:
        return
    removed = result.num_total and result.num_kept < result.num_total
    cause = "Elements were removed until nothing of the inputs was left. " if removed else ""
    advice = (
        "If the inputs should matter: for a network that starts from scratch, bmr.anneal in place of "
        "sparsify begins with a cold posterior; standardise inputs and targets, fit longer, or look at an "
        "earlier point of the path (result.most_predictive, result.at). If the targets are pure noise, this "
        "is the right answer."
    )
    if "not-converged" in codes:
        advice = f"The fit had not converged, so take more steps first. {advice}"
    yield Finding(
        "constant", f"The predictions do not depend on the inputs. {cause}".strip(), advice
    )


def _no_better_than_trivial(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    facts = result.facts
    if "constant" in codes or facts.get("dependence") is None or facts["rows"] < 20:
        return
    where = "held-out" if facts.get("held_out") else "training"
    excess = facts.get("nll", math.inf) - facts.get("trivial_nll", math.inf)
    worse_nll = not excess < -0.005
    if math.isfinite(excess) and excess > 0.5:
        found = (
            f"The negative log likelihood on the {where} rows is {facts['nll']:.3g} nats per data point, and "
            f"that of a constant, with the mean and the spread of the targets, is {facts['trivial_nll']:.3g}."
        )
    elif "trivial_accuracy" in facts:
        share = facts["trivial_accuracy"]
        error = math.sqrt(share * (1 - share) / facts["rows"])
        if not (facts["accuracy"] <= share + error and worse_nll):
            return
        found = (
            f"The accuracy on the {where} rows is {facts['accuracy']:.3g}, and always naming the largest "
            f"class gives {share:.3g}."
        )
    elif "trivial_rmse" in facts:
        trivial = facts["trivial_rmse"]
        if not (facts["rmse"] >= 0.998 * trivial and worse_nll and trivial > 0):
            return
        found = (
            f"The root mean squared error on the {where} rows is {facts['rmse']:.3g}, and that of the mean "
            f"of the targets is {trivial:.3g}."
        )
    else:
        return
    yield Finding(
        "no-better-than-trivial",
        found,
        "Fit longer, standardise inputs and targets, look whether the scale of the noise in the program is "
        "right, and whether inputs and targets are in the same order of rows. If the inputs carry no "
        "information, this is the right answer.",
    )


def _worse_than_the_path(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    del codes
    measured = [p for p in result.path if math.isfinite(p.metrics.get("nll", math.nan))]
    here = [p for p in measured if p.vfe == result.vfe and p.kept == result.num_kept]
    if not here or len(measured) < 2:
        return
    best = min(measured, key=lambda p: p.metrics["nll"])
    nll, least = here[-1].metrics["nll"], best.metrics["nll"]
    gap = nll - least
    noise = 0.5 / math.sqrt(result.facts.get("rows", 500))  # of a mean over so many rows
    numbers = (
        f"The held-out negative log likelihood is {nll:.4g} nats per data point with {result.num_kept} "
        f"elements, and was {least:.4g} with {best.kept}."
    )
    choose = "result.most_predictive(key, held_out) takes the point of the path that predicts best"
    if gap > max(0.05, 0.1 * abs(least), noise):
        yield Finding(
            "worse-than-unreduced",
            numbers,
            f"{choose}; criterion=criteria.Shrinkage() removes less, and so does "
            "options=FitOptions(temperature=0.25), which may predict better or far worse: compare both by "
            "bmr.choose on rows kept out. Fit longer if the loss still falls.",
        )
    elif (
        gap > max(0.02, 0.04 * abs(least), noise)
        and result.facts.get("criterion") == "SpikeAndSlab"
    ):
        yield Finding(
            "other-criterion",
            numbers,
            f"criterion=criteria.Shrinkage() keeps more elements and predicts better on such data; {choose}.",
        )


def _many_small_effects(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    if {"worse-than-unreduced", "other-criterion", "not-converged"} & set(codes):
        return
    reached = [point for point in result.path if not point.taken_back and point.kept]
    if result.vfe is None or len(reached) < 2:
        return
    lowest = min(reached, key=lambda point: point.vfe)
    gap = result.vfe - lowest.vfe
    # Of few large effects, the two points are the same or within two nats of each other.
    if gap > 5 and lowest.kept > result.num_kept and result.num_total <= 500:
        yield Finding(
            "many-small-effects",
            f"With {lowest.kept} of {lowest.total} elements the free energy was {gap:.3g} nats lower than "
            f"with {result.num_kept}. The prior on the masks decides for fewer, as it should if most effects "
            "are absent.",
            "If many are small instead, as random effects are: schedule=schedules.Verified(mask_prior=False) "
            f"leaves that prior out, result.at({result.path.index(lowest)}) is the other point, and "
            "sites=[...] names what may be absent.",
        )


def _other_guide(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    del codes
    facts = result.facts
    if facts.get("joint") is not False or facts.get("correlation", 0.0) <= 0.8:
        return
    columns = facts["num_columns"]
    coefficients = any(columns in np.shape(m) and np.ndim(m) == 1 for m in result.keep.values())
    if coefficients and result.num_total <= 500:
        i, j = facts["correlated"]
        yield Finding(
            "other-guide",
            f"Columns {i} and {j} of '{facts['correlated_in']}' have a correlation of "
            f"{facts['correlation']:.2f}, and {facts['guide']} treats their coefficients as independent.",
            "Use guide=infer.AutoMultivariate(program), a joint posterior, with which the choice between "
            "correlated columns is better.",
        )


def _scale(result: Any, codes: Sequence[str]) -> Iterator[Finding]:
    del codes
    for entry in result.facts.get("scales", ()):
        yield _of_scale(entry)


def _of_scale(entry: Mapping[str, Any]) -> Finding:
    columns, total = entry["columns"], entry["num_columns"]
    where = f"'{entry['argument']}'"
    if columns:
        more = f", ... ({total} in all)" if total > len(columns) else ""
        where = f"columns {', '.join(map(str, columns))}{more} of {where}"
    kind = "The inputs" if entry["role"] == "input" else "The targets"
    return Finding(
        "scale",
        f"{kind} are far from unit scale: {where} range from {entry['least']:.4g} to {entry['most']:.4g}.",
        "Subtract the mean and divide by the standard deviation of the training rows, unless the priors of "
        "the program are made for this scale.",
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more layers"


_CHECKS: tuple[Callable[[Any, Sequence[str]], Iterator[Finding]], ...] = (
    _not_converged,
    _skipped,
    _constant,
    _dead_layers,
    _no_better_than_trivial,
    _worse_than_the_path,
    _many_small_effects,
    _rounds,
    _other_guide,
    _scale,
)
