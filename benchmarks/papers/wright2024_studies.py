"""The studies of `wright2024`: rankings of units, pruning after training by each, and how they agree."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.stats import spearmanr

import bmrjax as bmr
from benchmarks.common import structured
from bmrjax import criteria, nn, reduction, schedules, structure


def rankings(
    network: eqx.Module, train: Any, test: Any, fit: structured.Fit, seed: int, *, curve: bool
) -> dict[str, Any]:
    """Fit a network with noise; rank its units by each criterion, and prune along each ranking."""
    key = jax.random.key(seed)
    train, test = (tuple(map(jnp.asarray, split)) for split in (train, test))
    noisy = nn.with_noise(network, kl_weight=fit.kl_weight)
    result = _fit(noisy, train, test, fit, key, criterion=None, num_epochs=fit.epochs)
    values: dict[str, Any] = dict(_posteriors(result, train))
    names = [name for name in values if name.endswith(".value")]
    scores = _scores(result, {name: values[name] for name in names}, train)
    flat = {
        rule: np.concatenate([np.ravel(np.asarray(score[name])) for name in names])
        for rule, score in scores.items()
    }
    rules = list(flat)
    ranks = {
        f"{a} ~ {b}": float(spearmanr(flat[a], flat[b]).statistic)
        for i, a in enumerate(rules)
        for b in rules[i + 1 :]
    }
    found: dict[str, Any] = {"ranks": ranks, "fit": vars(fit)}
    # Where the evidence would stop: units whose removal it does not miss.
    size = len(flat["bmrs-n"])
    found["stops"] = {
        rule: float(np.mean(flat[rule] <= 0)) for rule in ("bmrs-n", "bmrs-u8", "bmrs-u4")
    }
    if not curve:
        return found
    fitted = result.network(train[0][:2])["net"]
    found["curves"] = {}
    for rule, score in scores.items():
        positive = _ranked(score, names, size)
        pruned = _fit(
            fitted,
            train,
            test,
            fit,
            key,
            criterion=criteria.GivenScores(
                fraction=0.95, family=reduction.LogNormal, scores=positive
            ),
            num_epochs=12,
            schedule=schedules.Every(
                wait=1,
                fraction=0.25,
                order=lambda found, decision, s=positive: {
                    name: s[name] for name in found.posterior
                },
            ),
            start=result,
        )
        line = bmr.trade_off(pruned)
        found["curves"][rule] = {
            "removed": line.sparsity.tolist(),
            "accuracy": (100 * line.value).tolist(),
            "knee": line.knee,
        }
    return found


def _fit(
    network: Any, train: Any, test: Any, fit: structured.Fit, key: Any, *, start: Any = None, **more: Any
) -> bmr.Result:  # fmt: skip
    program = bmr.programs.classifier(network, None)
    guide = bmr.infer.AutoMeanField(program)
    if start is not None:
        guide = _started(guide, start)
    return bmr.sparsify(
        program,
        train,
        key=key,
        guide=guide,
        held_out=bmr.HeldOut(test, every=1, samples=1, final_samples=1),
        batch_size=fit.batch_size,
        optimizer=structured.optimizer(fit),
        progress=False,
        **more,
    )


def _started(guide: Any, result: bmr.Result) -> Any:
    """Return a guide that starts at the noise of a fitted program."""

    def begin(site: Any = None) -> Any:
        found = None if site is None else result.params.get(f"{site['name']}_auto_loc")
        return bmr.init_to_network(site) if found is None else jnp.exp(found)

    return bmr.infer.AutoMeanField(guide.model, init_loc_fn=begin)


def _posteriors(result: bmr.Result, train: Any) -> Mapping[str, Any]:
    batch = tuple(a[:2] for a in train)
    assert result.unpruned_guide is not None
    guide = result.unpruned_guide
    return bmr.site_posteriors(result.model, guide, result.params, *batch).posterior


def _scores(result: bmr.Result, q: Mapping[str, Any], train: Any) -> dict[str, dict[str, Any]]:
    """Return the score of each unit by each criterion; those removed first have the lowest."""
    network: Any = result.network(train[0][:2])["net"]
    groups = structure.unit_groups(network, train[0][0], along="outputs")
    x, y = (a[:2000] for a in train)

    def loss(net: Any) -> Any:
        logits = jax.vmap(net)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def norms(tree: Any) -> dict[str, Any]:
        # Of the weights at the input of each unit; the noise itself is no weight.
        arrays = {
            f"net.{name}": jnp.square(array)
            for name, array in structure.named_arrays(tree).items()
            if name.endswith("weight")
        }
        total = jnp.sqrt(groups.sum({n: a for n, a in arrays.items() if n in groups.ids}))
        return {name: total[groups.ids[name]] for name in q}

    def evidence(rule: str) -> dict[str, Any]:
        criterion = structured.CRITERIA[rule]
        prior = {name: reduction.LogUniform(p.low, p.high) for name, p in q.items()}
        delta_f = criterion(criteria.SitePosteriors(q, prior)).delta_f
        return {name: -jnp.maximum(value, -1e30) for name, value in delta_f.items()}

    return {
        "snr": {name: p.snr for name, p in q.items()},
        "mean": {name: p.mean for name, p in q.items()},
        "l2": norms(network),
        "gradient": norms(eqx.filter_jit(eqx.filter_grad(loss))(network)),
        **{rule: evidence(rule) for rule in ("bmrs-n", "bmrs-u8", "bmrs-u4")},
    }


def _ranked(score: Mapping[str, Any], names: list[str], size: int) -> dict[str, Any]:
    """Return ranks instead of scores: positive, whatever their sign and scale."""
    flat = np.concatenate([np.ravel(np.asarray(score[name])) for name in names])
    ranks = np.empty(size, np.float32)
    ranks[np.argsort(flat, kind="stable")] = np.arange(1, size + 1)
    cuts = np.cumsum([score[name].size for name in names])[:-1]
    parts = np.split(ranks, cuts)
    return {
        name: jnp.asarray(part.reshape(score[name].shape))
        for name, part in zip(names, parts, strict=True)
    }


def as_text(row: dict[str, Any]) -> str:
    """Return a study as text."""
    head = f"{row['data']} {row['net']}, seed {row['seed']}, {row['fit']['epochs']} epochs. "
    if row["study"] == "digits":
        cells = [
            f"p1 = {p1}: {found['compression']:.1f} % / {found['accuracy']:.2f} %"
            for p1, found in row["digits"].items()
        ]
        return f"{head}Compression / accuracy of BMRS-U: {'; '.join(cells)}.\n"
    pairs = ", ".join(f"{pair} {value:.2f}" for pair, value in row["ranks"].items())
    stops = ", ".join(f"{rule} {100 * part:.1f} %" for rule, part in row["stops"].items())
    text = f"{head}Rank correlations: {pairs}. Units that the evidence does not miss: {stops}.\n"
    for rule, line in row.get("curves", {}).items():
        points = ", ".join(
            f"{100 * s:.0f} % {a:.2f}{' (knee)' if i == line['knee'] else ''}"
            for i, (s, a) in enumerate(zip(line["removed"], line["accuracy"], strict=True))
        )
        text += f"\nPruned after training by {rule}, units removed and accuracy: {points}.\n"
    return text
