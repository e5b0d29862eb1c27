"""Which point of the path few validation rows ought to choose: rules on the same fits of small tables.

    python -m benchmarks.trust.point_rules --data-root DIR

Of each table, 300 rows are fitted by the defaults of the command line, 15 % of them kept out (the first fit,
without further ones at other temperatures), and up to 1,000 others are predicted at every point of the path.
None of the rows kept out took part in training, so any of them may choose: 100 times, so many are drawn of
both kinds to choose, half of them at most, and the rest are the test. The rules: the sparsest point within
so many standard errors of the best, by the difference that is paired over the rows; the same, or by 3 nats in
all; the lowest VFE; the fit before anything is removed; and ridge or logistic regression of all 300 rows.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import bmrjax as bmr
from benchmarks.common import datasets, options
from benchmarks.common.rows import Rows, group, mean_and_error
from benchmarks.common.rows import table as markdown
from benchmarks.trust.baselines import baselines
from bmrjax.cli.build import (
    build_criterion,
    build_optimizer,
    build_programs,
    build_schedule,
    num_outputs,
)
from bmrjax.cli.proportion import in_proportion
from bmrjax.cli.run_sparsify import FIRST_LAYER, split_off
from bmrjax.cli.sparsify_options import SparsifyOptions, kl_warmup_epochs_of
from bmrjax.run.choose_point import constant_by_evidence, without_inputs
from bmrjax.run.sparsest import STRONG, excess, sparsest_within

SETS = (*datasets.UCI, "diabetes", "breast_cancer")
FITTED, TEST, DRAWS = 300, 1000, 100
# Rows that choose.
CHOOSING = (20, 45, 150)
Points = list[dict[str, Any]]


def _within(errors: float) -> Callable[[Points, np.ndarray], int]:
    def rule(points: Points, scores: np.ndarray) -> int:
        return sparsest_within(scores, [point["kept"] for point in points], within=errors)

    return rule


def _within_or_nats(points: Points, scores: np.ndarray) -> int:
    """Return the sparsest point that is not worse by a standard error and by a Bayes factor of 20."""
    best = scores[int(np.argmax(scores.mean(1)))]
    eligible = [
        i
        for i, each in enumerate(scores)
        if excess(best, each) <= 1 or np.sum(best - each) <= STRONG
    ]
    return min(eligible, key=lambda i: (points[i]["kept"], -scores[i].mean()))


def _lowest_vfe(points: Points, scores: np.ndarray) -> int:
    del scores
    return int(np.argmin([point["vfe"] for point in points]))


RULES: dict[str, Callable[[Points, np.ndarray], int]] = {
    "best": _within(0.0),
    "1 SE": _within(1.0),
    "1.5 SE": _within(1.5),
    "2 SE": _within(2.0),
    "3 SE": _within(3.0),
    "1 SE or 3 nats": _within_or_nats,
    "VFE": _lowest_vfe,
    "not reduced": lambda points, _: int(np.argmax([point["kept"] for point in points])),
}


def data_of(name: str, root: Any, seed: int) -> Any:
    """Return rows to fit and rows to test, drawn by a seed; labels of wine are numbers."""
    frame = datasets.table(name, root)
    x, target = frame.iloc[:, :-1].to_numpy(float), frame.iloc[:, -1]
    labels = name == "breast_cancer"
    y = np.unique(target, return_inverse=True)[1] if labels else target.to_numpy(float)
    order = np.random.default_rng(2000 + seed).permutation(len(y))
    size = min(FITTED, len(y) - 100)
    train, test = order[:size], order[size : size + TEST]
    task: Any = "classification" if labels else "regression"
    return bmr.data.from_arrays(x[train], y[train], x[test], y[test], task=task, name=name)


def path_of(found: Any, seed: int) -> tuple[Points, np.ndarray, np.ndarray]:
    """Return the points of a path, and the log density and the error of each row outside of training."""
    given: Any = SparsifyOptions(data=found.name, out=None, seed=seed)  # type: ignore[arg-type]
    given = in_proportion(given, len(found.train[0]), found.input_shape)
    program, guide = build_programs(given, found.input_shape, num_outputs(found), found.num_classes)
    train, kept_out = split_off(found.train, given, stratify=found.num_classes is not None)
    warm_up = kl_warmup_epochs_of(given) * given.steps_per_epoch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bmr.FitWarning)
        result = bmr.sparsify(
            program,
            train,
            key=jax.random.key(seed),
            num_epochs=given.num_epochs,
            criterion=build_criterion(given, found.input_shape, num_outputs(found)),
            schedule=build_schedule(given),
            guide=guide,
            optimizer=build_optimizer(given),
            batch_size=given.batch_size,
            steps_per_epoch=given.steps_per_epoch,
            options=bmr.FitOptions(kl_warmup=warm_up),
            progress=False,
        )
    constant = without_inputs(result.path, FIRST_LAYER)
    result.path = [*result.path, *([] if constant is None else [constant])]
    others = tuple(np.concatenate(parts) for parts in zip(kept_out, found.test, strict=True))
    points, log_probs, errors = [], [], []
    for i, point in enumerate(result.path):
        at, key = result.at(i), jax.random.key(seed + 1)
        predicted = at.predict(key, *others, num_samples=100)
        mean, value = np.asarray(predicted.mean), others[1]
        if found.num_classes is None:
            wrong = np.square(mean.reshape(value.shape) - value)
        else:
            wrong = mean.argmax(-1) != value
        vfe = point.vfe if np.isfinite(point.vfe) else at.free_energy(key, train, num_samples=10)
        columns = int(np.asarray(point.keep[FIRST_LAYER]).any(0).sum())
        points.append({"kept": point.kept, "vfe": float(vfe), "columns": columns})
        log_probs.append(np.asarray(predicted.log_prob, np.float64))
        errors.append(np.ravel(wrong).astype(float))
    return points, np.stack(log_probs), np.stack(errors)


def chosen(rule: str, points: Points, scores: np.ndarray) -> int:
    """Return the position of the point that a rule takes; a constant is for the evidence to choose."""
    constants = [i for i, point in enumerate(points) if not point["columns"]]
    networks = [i for i in range(len(points)) if i not in constants]
    if "SE" in rule or rule == "best":
        vfes = [point["vfe"] for point in points]
        constant = constant_by_evidence(scores, vfes, constants)
        if constant is not None:
            return constant
    networks = networks or constants
    return networks[RULES[rule]([points[i] for i in networks], scores[np.array(networks)])]


def run(name: str, seed: int, root: Any) -> dict[str, Any]:
    """Return the row of a fit: what each rule reaches, by the number of rows that choose."""
    found = data_of(name, root, seed)
    points, log_probs, errors = path_of(found, seed)
    of_rules: dict[str, Any] = {}
    for size in CHOOSING:
        rng, each = np.random.default_rng(seed), {rule: [] for rule in RULES}
        for _ in range(DRAWS):
            order = rng.permutation(log_probs.shape[1])
            choose, test = np.split(order, [min(size, len(order) // 2)])
            for rule in RULES:
                i = chosen(rule, points, log_probs[:, choose])
                taken = -log_probs[i, test].mean(), errors[i, test].mean()
                each[rule].append((*taken, points[i]["kept"], points[i]["columns"]))
        of_rules[str(size)] = {
            rule: _summary(np.array(draws), found) for rule, draws in each.items()
        }
    inputs = found.input_shape[0]
    row = {"set": name, "seed": seed, "rows": len(found.train[0]), "inputs": inputs, "path": points}
    return row | {"rules": of_rules, "linear": baselines(found, seed)["linear"]}


def _summary(draws: np.ndarray, found: Any) -> dict[str, float]:
    nll, wrong, kept, columns = draws.T
    score = {"rmse": float(np.sqrt(wrong).mean())}
    if found.num_classes is not None:
        score = {"accuracy": float(1 - wrong.mean())}
    spread = float(np.log2(np.maximum(kept, 1)).std())
    means = {"nll": float(nll.mean()), "kept": float(kept.mean()), "columns": float(columns.mean())}
    return means | score | {"spread": spread, "column_spread": float(columns.std())}


def write_table(rows: Rows) -> None:
    """Write the means over all tables by rule, and the tables one by one for 45 rows."""
    by_set = group(rows.rows, "set")
    lines = []
    for size in map(str, CHOOSING):
        for rule in RULES:
            gaps = [_gaps(fits, size, rule) for fits in by_set.values()]
            means = {
                name: [
                    np.mean([fit["rules"][size][rule][name] for fit in fits])
                    for fits in by_set.values()
                ]
                for name in ("kept", "spread", "columns", "column_spread")
            }
            lines.append(
                [
                    size,
                    rule,
                    mean_and_error([float(np.mean(gap)) for gap in gaps], 4),
                    f"{max(float(np.mean(gap)) for gap in gaps):+.3f}",
                    f"{np.exp(np.mean(np.log(np.maximum(means['kept'], 1)))):.1f}",
                    f"{np.mean(means['spread']):.2f}",
                    f"{np.mean(means['columns']):.1f} ± {np.mean(means['column_spread']):.2f}",
                ]
            )
    header = (
        "rows that choose | rule | NLL less that of 1 SE | most of a table | weights kept | SD of log2 of "
        "them | columns"
    )
    text = (
        "Means over the tables: ± is the standard error over tables, for columns the spread over draws.\n\n"
        + markdown(header, lines)
    )
    lines = [_line(name, fits) for name, fits in by_set.items()]
    header = (
        "table | 1 SE: NLL | weights, columns | 2 SE, less that | weights, columns | 1 SE or 3 nats, less "
        "that | VFE, less that | not reduced: NLL | ridge or logistic: NLL | RMSE or accuracy: 1 SE, 2 SE, "
        "linear | fits"
    )
    text += "\n45 rows choose, mean ± standard error over fits.\n\n" + markdown(header, lines)
    rows.write_table(text, "point_rules.md")


def _gaps(fits: list[dict[str, Any]], size: str, rule: str) -> list[float]:
    return [fit["rules"][size][rule]["nll"] - fit["rules"][size]["1 SE"]["nll"] for fit in fits]


def _line(name: str, fits: list[dict[str, Any]]) -> list[str]:
    def of(rule: str, what: str) -> list[float]:
        return [fit["rules"]["45"][rule][what] for fit in fits]

    score = "rmse" if "rmse" in fits[0]["linear"] else "accuracy"

    def size(rule: str) -> str:
        return f"{np.mean(of(rule, 'kept')):.0f}, {np.mean(of(rule, 'columns')):.1f}"

    scores = [of("1 SE", score), of("2 SE", score), [fit["linear"][score] for fit in fits]]
    return [
        f"{name} ({fits[0]['rows']} × {fits[0]['inputs']})",
        mean_and_error(of("1 SE", "nll"), 3),
        size("1 SE"),
        mean_and_error(_gaps(fits, "45", "2 SE"), 4),
        size("2 SE"),
        mean_and_error(_gaps(fits, "45", "1 SE or 3 nats"), 4),
        mean_and_error(_gaps(fits, "45", "VFE"), 4),
        f"{np.mean(of('not reduced', 'nll')):.3f}",
        f"{np.mean([fit['linear']['nll'] for fit in fits]):.3f}",
        ", ".join(f"{np.mean(values):.3f}" for values in scores),
        str(len(fits)),
    ]


def main() -> None:
    """Run the study and write what it found."""
    parser = options.parser(__doc__, "trust", report=True)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=datasets.table_names())
    args = options.parse(parser)
    rows = Rows(args.out, "point_rules.json", shared=True)
    for seed in () if args.report else range(args.seeds):
        for name in args.sets:
            if not rows.has(set=name, seed=seed):
                rows.add(run(name, seed, args.data_root))
                found = rows.rows[-1]["rules"]["45"]
                printed = {
                    rule: (round(each["nll"], 3), round(each["kept"]))
                    for rule, each in found.items()
                }
                print(name, seed, printed, flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()
