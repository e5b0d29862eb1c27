"""Effect handlers that reduce, scale and evaluate any NumPyro program."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int
from numpyro import distributions as dist
from numpyro.primitives import Messenger, apply_stack

from bmrjax.backend.inside_scan import enter
from bmrjax.families import drawn_once, pruned
from bmrjax.families.pruned_scan import prune_step
from bmrjax.fast_noise import fast_noise as fast_noise
from bmrjax.noise_draws import NoiseDraws as NoiseDraws
from bmrjax.noise_draws import draws as draws
from bmrjax.noise_draws import noise_draws as noise_draws
from bmrjax.temper import temper as temper


def _is_latent(msg: Mapping[str, Any]) -> bool:
    return msg["type"] == "sample" and not msg["is_observed"]


class prune(Messenger):
    """Remove elements of latent sites from a program, model and guide alike.

    A removed element is zero and leaves the log density; its Kullback-Leibler divergence under
    `TraceMeanField_ELBO` is exactly zero. The program itself does not change, and the masks
    may be traced, so a new mask never recompiles.

    Made for variational inference and prediction. Under MCMC the program sees the zeros, but a removed
    element has a flat density, along which a sampler wanders without end; take it out of the program.

    Args:
        fn: A NumPyro program: a model, or a guide in which each pruned site is a sample site of
            its own (AutoNormal, AutoDelta, or one written by hand), or an `infer.CorrelatedGuide`.
        keep: Site name to boolean mask, True stays, each shaped as the whole site
            (steps of a `scan`, plates, batch and event dimensions). Others are left alone.

    Raises:
        ValueError: For a mask of another shape than its site, a name that is not a latent site of
            the program, or a site whose elements depend on each other (a multivariate normal,
            a Dirichlet) and that is not `distributions.Prunable`, or is in a scan with ``reverse=True``.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> import numpyro.distributions as dist
        >>> from bmrjax import handlers
        >>> def program():
        ...     return numpyro.sample("w", dist.Normal(5.0, 1.0).expand([2]).to_event(1))
        >>> half = handlers.prune(program, {"w": jnp.array([True, False])})
        >>> numpyro.handlers.seed(half, jax.random.key(0))()[1]
        Array(0., dtype=float32)
    """

    def __init__(self, fn: Callable | None = None, keep: Mapping[str, ArrayLike] | None = None):
        self.keep = {} if keep is None else dict(keep)
        self._seen: set[str] = set()
        super().__init__(fn)

    def __enter__(self) -> "prune":
        self._seen = set()
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        super().__exit__(exc_type, exc_value, traceback)
        if exc_type is None:
            unknown = sorted(set(self.keep) - self._seen)
            if unknown:
                raise ValueError(
                    f"prune: the program has no latent sample site named {unknown}. "
                    "Give masks only for its own latent sites."
                )

    def process_message(self, msg: dict[str, Any]) -> None:
        """Put the pruned distribution in place of the site's own."""
        if msg["type"] == "current_masks":
            msg["value"] = both_masks(msg["value"], self.keep)
            return
        if msg["type"] == "control_flow":
            enter(msg, lambda step, at: prune_step(step, self.keep, at))
            return
        name = msg.get("name")
        if name not in self.keep or not _is_latent(msg):
            return
        self._seen.add(name)
        msg["fn"] = pruned(drawn_once(msg), jnp.asarray(self.keep[name]), name=name)
        if msg["value"] is not None:
            self._zero_removed(msg)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Zero what a handler outside this one put in: raw samples of MCMC, substituted values."""
        if msg.get("name") in self.keep and _is_latent(msg):
            self._zero_removed(msg)

    def _zero_removed(self, msg: dict[str, Any]) -> None:
        msg["value"] = jnp.where(self.keep[msg["name"]], msg["value"], 0)


class scale_elbo(Messenger):
    """Scale the log likelihood and the Kullback-Leibler term of a program.

    Args:
        fn: A NumPyro program.
        likelihood: Factor on the observed sites: a number, or one per row of the batch. The number of
            data over the batch size makes a program written for the whole data set see minibatches.
        kl: Factor on the latent sites.
        sites: Names of the observed sites to scale; by default all, or with `rows` those whose log density
            has an axis of that length, the first or the last. A mapping says which axis that is, by name.
        rows: Number of rows of the batch.
        subsampled: The factor in place of `likelihood` on sites inside a subsampled `numpyro.plate`, which
            NumPyro scales itself.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer.util import log_density
        >>> from bmrjax import handlers
        >>> def program(y):
        ...     numpyro.sample("y", dist.Normal(0.0, 1.0).expand(y.shape).to_event(1), obs=y)
        >>> batch = jnp.ones(10)  # of 100 rows
        >>> whole, _ = log_density(handlers.scale_elbo(program, likelihood=100 / 10), (batch,), {}, {})
        >>> part, _ = log_density(program, (batch,), {}, {})
        >>> float((whole / part).round(1))
        10.0
    """

    def __init__(
        self,
        fn: Callable | None = None,
        *,
        likelihood: ArrayLike = 1.0,
        kl: ArrayLike = 1.0,
        sites: Collection[str] | None = None,
        rows: int | None = None,
        subsampled: ArrayLike | None = None,
    ):
        self.likelihood: ArrayLike = likelihood
        self.kl: ArrayLike = kl
        self.sites = None if sites is None else frozenset(sites)
        self._axes: Mapping[str, int] = sites if isinstance(sites, Mapping) else {}
        self.rows: int | None = rows
        self.subsampled: ArrayLike | None = subsampled
        self._in_subsample: set[str] = set()
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Multiply the site's scale."""
        if msg["type"] == "plate":
            size, subsample_size = msg["args"]
            if subsample_size is not None and size != subsample_size:
                self._in_subsample.add(msg["name"])
        if msg["type"] != "sample":
            return
        factor = self.kl if _is_latent(msg) else self._of_observed(msg)
        if factor is not None:
            msg["scale"] = factor if msg["scale"] is None else factor * msg["scale"]

    def _of_observed(self, msg: dict[str, Any]) -> ArrayLike | None:
        if self.sites is not None and msg["name"] not in self.sites:
            return None
        shape = log_density_shape(msg)
        axis = self._axes.get(msg["name"], row_axis(shape, self.rows))
        if self.sites is None and self.rows is not None and axis is None:
            return None
        is_scaled = any(frame.name in self._in_subsample for frame in msg["cond_indep_stack"])
        factor = self.subsampled if is_scaled else self.likelihood
        if factor is None or jnp.ndim(factor) == 0 or axis is None:
            return factor
        return jnp.reshape(factor, [-1 if i == axis else 1 for i in range(len(shape))])


def log_density_shape(site: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the log density of an observed site."""
    fn, value = site["fn"], site["value"]
    shape = jnp.shape(value)
    return jnp.broadcast_shapes(tuple(fn.batch_shape), shape[: len(shape) - fn.event_dim])


def row_axis(shape: tuple[int, ...], rows: int | None) -> int | None:
    """Return the axis of a log density that has an entry per row: the first or the last; None without."""
    for axis in (0, len(shape) - 1):
        if shape and shape[axis] == rows:
            return axis
    return None


class inference(Messenger):
    """Run random modules as at test time: no dropout, running averages in batch norm.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (64,), 2, dropout=0.5, key=jax.random.key(0))
        >>> def program(x):  # dropout draws from its key, but for test time
        ...     return bmr.random_module("net", network, None)(x)
        >>> def differs(run):
        ...     first, second = (numpyro.handlers.seed(run, i)(jnp.ones((1, 4))) for i in (0, 1))
        ...     return not bool(jnp.allclose(first, second))
        >>> differs(program), differs(bmr.handlers.inference(program))
        (True, False)
    """

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the network's inference flag."""
        if msg["type"] == "apply_network":
            msg["kwargs"]["inference"] = True
        elif msg["type"] == "control_flow":
            enter(msg, lambda step, at: inference(step))


class hide_data(Messenger):
    """Take the observed sites out of the log density; what is left of an ELBO is its divergence.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> from numpyro.infer.util import log_density
        >>> from bmrjax import handlers
        >>> def program(y):
        ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(w, 1.0), obs=y)
        >>> density, _ = log_density(handlers.hide_data(program), (3.0,), {}, {"w": 0.0})
        >>> density.round(3) == dist.Normal(0, 1).log_prob(0.0).round(3)  # the prior is left
        Array(True, dtype=bool)
    """

    def process_message(self, msg: dict[str, Any]) -> None:
        """Mask an observed site."""
        if msg["type"] == "sample" and msg["is_observed"]:
            msg["fn"] = msg["fn"].mask(mask=False)


class complete_missing(Messenger):
    """Give the latent outcomes that ``obs_mask=`` makes for rows that are observed their prior back.

    NumPyro masks their prior, and not their posterior: nothing bounds the scale of the latter, and the free
    energy falls for ever. They take no part in the program, so with a prior they add nothing to it.

    Args:
        fn: A NumPyro program.
        sites: Names of these sites; see `missing_outcomes`.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax.handlers import complete_missing
        >>> def program(y, is_there):
        ...     numpyro.sample("y", dist.Normal(jnp.zeros(2), 1), obs=y, obs_mask=is_there)
        >>> args = jnp.ones(2), jnp.array([True, False])
        >>> with numpyro.handlers.trace() as found, complete_missing(sites=["y_unobserved"]):
        ...     numpyro.handlers.seed(program, 0)(*args)
        >>> type(found["y_unobserved"]["fn"]).__name__
        'Normal'
    """

    def __init__(self, fn: Callable | None = None, *, sites: Collection[str]):
        self.sites: frozenset[str] = frozenset(sites)
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Take the mask off."""
        if msg["type"] == "sample" and msg["name"] in self.sites:
            msg["fn"] = _unmasked(msg["fn"])


def missing_outcomes(sites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the latent sites that ``obs_mask=`` made, beside the observed one of each.

    Args:
        sites: All of a program, as NumPyro describes them, by name.
    """
    return [
        name
        for name, site in sites.items()
        if site["type"] == "sample"
        and _is_latent(site)
        and name.endswith("_unobserved")
        and name.removesuffix("_unobserved") + "_observed" in sites
        and _unmasked(site["fn"]) is not site["fn"]
    ]


def _unmasked(fn: Any) -> Any:
    """Return a distribution without its mask, or itself if it has none."""
    if isinstance(fn, dist.MaskedDistribution):
        return _unmasked(fn.base_dist)
    if isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        inner = _unmasked(fn.base_dist)
        if inner is fn.base_dist:
            return fn
        if isinstance(fn, dist.Independent):
            return inner.to_event(fn.reinterpreted_batch_ndims)
        return inner.expand(fn.batch_shape)
    return fn


class at_step(Messenger):
    """Tell a program or its guide which training step it is in; see `training_step`.

    Args:
        fn: A NumPyro program.
        step: Number of steps taken so far; may be traced.

    Example:
        A factor that grows over the first 1,000 steps:

        >>> import numpyro
        >>> from bmrjax import handlers
        >>> def program():
        ...     return min(1.0, handlers.training_step() / 1000)
        >>> handlers.at_step(program, step=250)()
        0.25
    """

    def __init__(self, fn: Callable | None = None, step: ArrayLike = 0):
        self.step = step
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Answer the question."""
        if msg["type"] == "training_step":
            msg["value"] = self.step


def both_masks(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return masks that keep what both keep; a site without a mask is kept whole."""
    shared = {
        name: jnp.asarray(one[name]) & jnp.asarray(other[name]) for name in one if name in other
    }
    return {**one, **other, **shared}


class known_masks(Messenger):
    """Say which elements are kept, without removing any.

    For reading a posterior off the parameters of a guide; see `current_masks`.

    Args:
        keep: Site name to boolean mask, True = kept.
    """

    def __init__(self, keep: Mapping[str, Any]):
        self.keep = dict(keep)
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Answer `current_masks`."""
        if msg["type"] == "current_masks":
            msg["value"] = both_masks(msg["value"], self.keep)


def current_masks() -> dict[str, Bool[Array, "..."]]:
    """Return the masks of the `prune` handlers around the caller, by site; empty without one.

    For guides with one joint posterior over several sites, which have to prune it themselves.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax import handlers
        >>> handlers.current_masks()
        {}
        >>> with handlers.prune(keep={"w": jnp.array([True, False])}):
        ...     masks = handlers.current_masks()
        ...     _ = numpyro.sample("w", dist.Delta(jnp.ones(2), event_dim=1))
        >>> masks["w"]
        Array([ True, False], dtype=bool)
    """
    message: dict[str, Any] = {
        "type": "current_masks",
        "fn": dict,
        "args": (),
        "kwargs": {},
        "value": {},
    }
    return apply_stack(message)["value"]


def training_step() -> Int[Array, ""] | None:
    """Return the number of training steps taken so far, or None outside of training.

    For programs and guides that change while they train, such as one with a temperature: the
    engine answers with a traced integer, so a schedule of it never recompiles.

    Example:
        >>> from bmrjax import handlers
        >>> handlers.training_step() is None
        True
        >>> with handlers.at_step(step=3):
        ...     handlers.training_step()
        3
    """
    message: dict[str, Any] = {
        "type": "training_step",
        "fn": lambda: None,
        "args": (),
        "kwargs": {},
        "value": None,
    }
    return apply_stack(message)["value"]
