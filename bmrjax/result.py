"""What a run hands back."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Bool
from numpyro.primitives import Messenger

from bmrjax.batches import check_data
from bmrjax.checks import check_key
from bmrjax.handlers import inference, prune
from bmrjax.infer.arguments import length
from bmrjax.infer.correlated import correlated_marginals
from bmrjax.infer.evaluate import Evaluator, Prediction
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.guide import noise_bounds
from bmrjax.infer.prepare import prepare_guide
from bmrjax.infer.program_data import program_data
from bmrjax.infer.rows import row_sites
from bmrjax.reduction import LogNormal, Normal, SpikeAndSlab
from bmrjax.structure.compact import Compact, compact
from bmrjax.structure.parts import is_nnx


@dataclass(frozen=True)
class Point:
    """A state on the path of a run, which can be restored.

    Attributes:
        epoch: Epochs done when it was reached.
        vfe: Its VFE on the training data, in nats for the whole set.
        kept: Elements kept, of `total`.
        total: Elements of all reducible sites.
        metrics: Held-out metrics at this point.
        params: Constrained parameters and mutable sites, on the host.
        keep: Masks, on the host.
        mask_cost: Minus the log prior probability of the masks, in nats, if the schedule counts it
            (`schedules.Verified`, `mask_prior`); else 0.
        taken_back: Whether the run went back to a point before it.
    """

    epoch: int
    vfe: float
    kept: int
    total: int
    metrics: dict[str, float]
    params: dict[str, Any] = field(repr=False)
    keep: dict[str, np.ndarray] = field(repr=False)
    mask_cost: float = 0.0
    taken_back: bool = False

    @property
    def objective(self) -> float:
        """What points are compared by: `vfe` plus `mask_cost`, in nats."""
        return self.vfe + self.mask_cost


def kept_counts(keep: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many elements the masks keep, and how many there are."""

    def count(mask: Any) -> int:
        # Another process has a part of a mask that is not addressable, and counts it.
        here = getattr(mask, "is_fully_addressable", True)
        return int(np.sum(np.asarray(mask)) if here else jnp.sum(mask))

    kept = sum(count(mask) for mask in keep.values())
    return kept, sum(math.prod(mask.shape) for mask in keep.values())


def sparsity_per_layer(keep: Mapping[str, Any], layers: Mapping[str, str]) -> dict[str, float]:
    """Return the removed fraction of each layer."""
    found: dict[str, list[Any]] = {}
    for name, mask in keep.items():
        found.setdefault(layers.get(name, name), []).append(mask)
    result = {}
    for layer, masks in found.items():
        kept, total = kept_counts(dict(enumerate(masks)))  # type: ignore[arg-type]
        result[layer] = 1.0 - kept / total
    return result


def best(path: list[Point]) -> int:
    """Return the position of the point with the best objective; one that is not finite comes last."""
    values = [point.objective for point in path]
    return min(range(len(path)), key=lambda i: values[i] if math.isfinite(values[i]) else math.inf)


@dataclass(repr=False)
class Result:
    """A fitted and pruned program.

    Attributes:
        params: Constrained parameters of the guide and the model, and mutable sites, by name.
        keep: Boolean masks, one a reducible site; True stays.
        layers: Site name to the layer whose statistics it shares.
        history: One dict an epoch: ``vfe`` (mean over the steps, nats for all data), ``kept``,
            ``sparsity_per_layer``, ``steps``, ``skipped_steps``, times in seconds, and held-out metrics where
            they were taken. ``taken_back`` marks the epochs of rounds that were undone.
        path: States that can be restored with `at`, in the order they were reached.
        metrics: Held-out metrics of this state, from the final number of samples.
        timing: ``init_seconds``, ``compile_seconds``, ``seconds`` of the whole run.
        num_skipped: Steps skipped because their loss or gradient was not finite.
        vfe: VFE of this state on the training data, nats for all data; None if never measured.
        hyperparameters: What the grid of an `ensemble` gave this member.
        row_arguments: The program's arguments that have one row per data point, as ``"0"`` for the first
            positional one and ``"x"`` for the keyword x; None if unknown.
        by_rows: Whether the program was fitted in minibatches, so that its rows can be evaluated in parts.
    """

    params: dict[str, Any]
    keep: dict[str, Bool[Array, "..."]]
    layers: dict[str, str]
    num_data: int
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    path: list[Point] = field(default_factory=list, repr=False)
    metrics: dict[str, float] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    num_skipped: int = 0
    loop_mode: str = "fused"
    num_compilations: int = 0
    vfe: float | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    row_arguments: tuple[str, ...] | None = None
    by_rows: bool = False
    model: Callable | None = field(default=None, repr=False)
    guide: Callable | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return what one wants to see first: how much is left, and how well it fits."""
        head = f"Result: {self.num_kept} of {self.num_total} elements kept"
        if self.num_total:
            head += f" ({self.sparsity:.1%} removed)"
        lines = [head]
        if self.vfe is not None:
            lines.append(f"VFE {self.vfe:.6g} nats, {self.vfe / self.num_data:.4f} a datum")
        if self.metrics:
            told = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
            lines.append(f"held out: {told}")
        removed = [f"{name} {part:.1%}" for name, part in self.sparsity_per_layer.items()]
        if removed:
            more = f", and {len(removed) - 8} more" if len(removed) > 8 else ""
            lines.append(f"removed: {', '.join(removed[:8])}{more}")
        told = f"{len(self.history)} epochs, {len(self.path)} points on the path"
        if self.num_skipped:
            told += f", {self.num_skipped} steps skipped (not finite)"
        return "\n  ".join([*lines, told])

    @property
    def num_kept(self) -> int:
        """Elements kept."""
        return kept_counts(self.keep)[0]

    @property
    def num_total(self) -> int:
        """Elements of all reducible sites."""
        return kept_counts(self.keep)[1]

    @property
    def sparsity(self) -> float:
        """Removed fraction of the reducible elements, in [0, 1]."""
        return 1.0 - self.num_kept / self.num_total if self.num_total else 0.0

    @property
    def sparsity_per_layer(self) -> dict[str, float]:
        """Removed fraction of each layer."""
        return sparsity_per_layer(self.keep, self.layers)

    @property
    def vfe_per_datum(self) -> float | None:
        """`vfe` over the number of data, nats a datum."""
        return None if self.vfe is None else self.vfe / self.num_data

    def _programs(self) -> tuple[Callable, Callable]:
        if self.model is None or self.guide is None:
            raise ValueError(
                "This result was loaded without its program. Give it: "
                "bmr.load(directory, model=..., guide=...)."
            )
        return self.model, self.guide

    def at(self, index: int) -> "Result":
        """Return the result at a point of the path.

        Args:
            index: Position in `path`; negative ones count from the end.
        """
        if not -len(self.path) <= index < len(self.path):
            raise IndexError(f"Result.at: the path has {len(self.path)} points, and no {index}.")
        point = self.path[index]
        return dataclasses.replace(
            self,
            params=jax.tree.map(jnp.asarray, point.params),
            keep={name: jnp.asarray(mask) for name, mask in point.keep.items()},
            metrics=dict(point.metrics),
            vfe=point.vfe,
        )

    def smallest(self, *, vfe_within: float) -> "Result":
        """Return the sparsest point whose `Point.objective` is within a fraction of the best one's.

        The objective is the VFE, unless the schedule counts the masks' cost too.

        Args:
            vfe_within: 0.05 admits a VFE up to 5 % above the best of the path.
        """
        if not self.path:
            raise ValueError("This result has no path to choose from.")
        if not vfe_within >= 0:
            raise ValueError(f"smallest: vfe_within must not be negative, got {vfe_within}.")
        lowest = self.path[best(self.path)].objective
        limit = lowest + vfe_within * abs(lowest)
        good = [i for i, point in enumerate(self.path) if point.objective <= limit]
        return self.at(min(good, key=lambda i: self.path[i].kept))

    def most_predictive(self, key: Array, data: Any, *, num_samples: int = 100) -> "Result":
        """Return the point of the path with the lowest negative log likelihood on `data`.

        The point with the best VFE is the sparsest that a mean-field posterior can justify, and on
        small data it predicts worse than points before it. Use data that were kept out of both
        training and testing.

        Args:
            key: PRNG key; all points see the same noise.
            data: Held-out data of the form that the program was fitted on.
            num_samples: Posterior samples.

        Returns:
            That point; its `metrics` are those on `data`, the negative log likelihood in nats a datum.

        Raises:
            ValueError: Without a path, or if no point has a finite score.
        """
        if not self.path:
            raise ValueError("This result has no path to choose from.")
        check_key(key, "most_predictive")
        data = check_data(data, "most_predictive: data", rows=self.row_arguments)
        evaluator = Evaluator(*self._programs())
        chosen: Result | None = None
        for i in range(len(self.path)):
            point = self.at(i)
            point.metrics = evaluator.metrics(
                point.params, point.keep, data, key, num_samples=num_samples
            )
            nll = point.metrics["nll"]
            if math.isfinite(nll) and (chosen is None or nll < chosen.metrics["nll"]):
                chosen = point
        if chosen is None:
            raise ValueError(
                "most_predictive: no point of the path has a finite negative log likelihood on these "
                "data. Look for values far outside what the program was fitted on."
            )
        return chosen

    def predict(self, key: Array, *inputs: Any, num_samples: int = 100, **named: Any) -> Prediction:
        """Average the program's predictive over posterior samples.

        Args:
            key: PRNG key.
            *inputs: The program's arguments without the targets, as in ``model(x)``; give the
                targets too for their log predictive density.
            num_samples: Posterior samples.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Class probabilities or predictive means, one row a datum; see `Prediction`.

        Raises:
            TypeError: If `key` is no PRNG key.
            ValueError: For inputs that are not finite.
        """
        check_key(key, "Result.predict")
        data = check_data(named or inputs, "Result.predict: inputs", rows=self.row_arguments)
        return Evaluator(*self._programs()).predict(
            self.params, self.keep, data, key, num_samples=num_samples
        )

    def evaluate(self, key: Array, data: Any, *, num_samples: int = 100) -> dict[str, float]:
        """Return accuracy, NLL and 20-bin ECE (classes) or RMSE and NLL on `data`."""
        check_key(key, "Result.evaluate")
        data = check_data(data, "Result.evaluate: data", rows=self.row_arguments)
        return Evaluator(*self._programs()).metrics(
            self.params, self.keep, data, key, num_samples=num_samples
        )

    def free_energy(
        self,
        key: Array,
        data: Any,
        *,
        num_samples: int = 100,
        batch_size: int | None = None,
        loss: Any = None,
    ) -> float:
        """Measure the VFE of this state on `data`, in nats for all of them.

        Args:
            key: PRNG key.
            data: What the program was fitted on, or other data of the same form.
            num_samples: Posterior samples at least to average over.
            batch_size: Data at a time; each batch of each pass has a posterior sample of its own. By default
                128 for a program that was fitted in minibatches, else all of them.
            loss: A NumPyro ELBO; ``TraceMeanField_ELBO()`` by default.

        Raises:
            TypeError: If `key` is no PRNG key.
            ValueError: For data that cannot be used, or parts of the data where the program needs all of
                them.
        """
        check_key(key, "Result.free_energy")
        model, guide = self._programs()
        arrays = check_data(data, "Result.free_energy: data", rows=self.row_arguments)
        arrays = program_data(model, arrays, batch_size=batch_size, name="Result.free_energy: data")
        rows = length(arrays)
        if batch_size is None:
            batch_size = min(128, rows) if self.by_rows else rows
        sites = None
        if batch_size < rows:
            sites = row_sites(model, arrays, jax.random.key(0), name="Result.free_energy")
        loss = numpyro.infer.TraceMeanField_ELBO() if loss is None else loss
        measure = FreeEnergy(model, guide, loss=loss, batch_size=batch_size, row_sites=sites)
        prepare_guide(model, guide, self.params, jax.tree.map(lambda a: a[:batch_size], arrays))
        passes = -(-num_samples // -(-rows // batch_size))
        return measure(self.params, self.keep, arrays, key, num_passes=passes)

    def posterior(self) -> dict[str, Normal | SpikeAndSlab | LogNormal]:
        """Return the posterior of each reducible site.

        Of removed elements loc and scale are 0; of removed noise, which has loc 0 at θ = 1, loc is -inf.
        """
        _, guide = self._programs()
        marginals = correlated_marginals(guide, self.params, self.keep)
        return {name: self._site_posterior(name, marginals.get(name)) for name in self.keep}

    def _site_posterior(
        self, name: str, marginal: Normal | None
    ) -> Normal | SpikeAndSlab | LogNormal:
        keep, prefix = self.keep[name], getattr(self.guide, "prefix", "auto")
        if marginal is not None:
            loc, scale = marginal.loc, marginal.scale
        else:
            loc = self.params.get(f"{name}_{prefix}_loc")
            scale = self.params.get(f"{name}_{prefix}_scale")
        if loc is None or scale is None:
            raise ValueError(
                f"posterior() reads AutoNormal parameters, and '{name}' has none; use `sample`."
            )
        bounds = noise_bounds(self.guide, name)
        if bounds is not None:
            low, high = (jnp.broadcast_to(bound, keep.shape) for bound in bounds)
            return LogNormal(jnp.where(keep, loc, -jnp.inf), jnp.where(keep, scale, 0.0), low, high)
        loc, scale = jnp.where(keep, loc, 0.0), jnp.where(keep, scale, 0.0)
        logits = self.params.get(f"{name}_{prefix}_logits")
        if logits is None:
            return Normal(loc, scale)
        return SpikeAndSlab(loc, scale, jnp.where(keep, logits, -jnp.inf))

    def sample(self, key: Array, num_samples: int, *inputs: Any) -> dict[str, Array]:
        """Draw from the pruned posterior.

        Args:
            key: PRNG key.
            num_samples: Draws.
            *inputs: Arguments of the guide, where it needs any.

        Returns:
            Site name to draws, with a leading axis of `num_samples`; removed elements are zero.

        Raises:
            TypeError: If `key` is no PRNG key.
        """
        check_key(key, "Result.sample")
        _, guide = self._programs()
        predictive = numpyro.infer.Predictive(
            prune(guide, self.keep), params=self.params, num_samples=num_samples
        )
        return predictive(key, *inputs)

    def network(self, *inputs: Any) -> dict[str, Any]:
        """Return the lifted networks with their weights at the posterior mean, by name.

        Args:
            *inputs: Arguments of the program: one batch.

        Returns:
            Each as it was lifted: a module, or a pair of module and state with its running statistics.
        """
        return {name: network for name, (network, _) in self._networks(inputs).items()}

    def compact(self, *inputs: Any, drop_inputs: bool = True) -> dict[str, Compact]:
        """Return the lifted networks at the posterior mean without what they do not use, by name.

        Args:
            *inputs: Arguments of the program: one batch.
            drop_inputs: See `bmrjax.compact`.

        Returns:
            A smaller network each, with a report; see `bmrjax.compact`.
        """
        return {
            name: compact(network, *args, drop_inputs=drop_inputs)
            for name, (network, args) in self._networks(inputs).items()
        }

    def center(self, *inputs: Any) -> dict[str, Array]:
        """Return each latent site at the mean (or median) of its posterior, and what is deterministic there.

        Args:
            *inputs: Arguments of the program: one batch.

        Returns:
            Site name to value; removed elements are zero.
        """
        fitted = self._at_center(inputs)
        with inference(), numpyro.handlers.trace() as trace:
            fitted(*inputs)
        kinds = ("sample", "deterministic")
        return {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] in kinds and not site.get("is_observed", False)
        }

    def _at_center(self, inputs: tuple[Any, ...]) -> Callable:
        """Return the program with its latent sites at the centre of their posterior."""
        from bmrjax.infer.posterior import central_values

        model, guide = self._programs()
        prepare_guide(model, guide, self.params, inputs)
        values = central_values(guide, self.params, inputs, {})
        values = {
            name: jnp.where(self.keep[name], value, 0) if name in self.keep else value
            for name, value in values.items()
        }
        seeded = numpyro.handlers.seed(model, jax.random.key(0))
        return numpyro.handlers.substitute(seeded, data={**self.params, **values})

    def _networks(self, inputs: tuple[Any, ...]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        """Return each network at the posterior mean, and example inputs as it takes them."""
        found: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        params = self.params

        class collect(Messenger):
            def process_message(self, msg: dict[str, Any]) -> None:
                if msg["type"] != "apply_network":
                    return
                network = msg["network"].whole(params.get(f"{msg['network'].name}.buffers"))
                single = not is_nnx(network)
                args = tuple(x[0] if single else x for x in msg["args"])
                found[msg["network"].name] = network, args

        fitted = self._at_center(inputs)
        with inference(), collect():
            fitted(*inputs)
        return found

    def save(self, directory: str | Path) -> None:
        """Write parameters, masks, history and path; see `bmrjax.load`.

        Arrays go to safetensors, the rest to JSON; the folder is complete or not there.
        """
        from bmrjax.storage import save

        save(self, Path(directory))
