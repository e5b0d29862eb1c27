"""Guides with a joint normal posterior that can be reduced."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

from bmrjax import reduction
from bmrjax.families import is_real, marginals, pruned_joint, read_joint
from bmrjax.handlers import current_masks
from bmrjax.infer.arguments import Keep
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.init import init_to_network
from bmrjax.infer.scale_tril import scale_tril
from bmrjax.reduction import Normal


class JointGuide(CorrelatedGuide, AutoContinuous):
    """What `sparsify` needs of a guide with one joint posterior.

    To be mixed into an automatic guide of NumPyro with one posterior over all sites. Under
    `handlers.prune` that posterior loses the removed elements; after a reduction `condition` moves
    the others to where they are given that the removed are zero.

    Example:
        A guide of NumPyro's that `sparsify` can reduce:

        >>> import numpyro, numpyro.distributions as dist
        >>> from numpyro.infer.autoguide import AutoMultivariateNormal
        >>> from bmrjax.infer import JointGuide
        >>> class Own(JointGuide, AutoMultivariateNormal):
        ...     def flat_marginals(self, params, keep):
        ...         tril = params["auto_scale_tril"]
        ...         return params["auto_loc"], (tril**2).sum(-1) ** 0.5
        >>> def program():
        ...     numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        >>> guide = Own(program)
        >>> params = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace()
        >>> values = {n: site["value"] for n, site in params.items() if site["type"] == "param"}
        >>> guide.posterior(values, {})["w"].scale
        Array([0.1, 0.1], dtype=float32)
    """

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Sample every latent site, in the order of the program.

        NumPyro samples them in alphabetical order, and `TraceMeanField_ELBO` warns of another order than the
        program's. The parameters keep the alphabetical one.
        """
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        trace: Any = self.prototype_trace
        unpack = self._unpack_latent
        order = [name for name in trace if name in self._init_locs]

        def unpack_in_order(latent: Array) -> dict[str, Array]:
            parts: Any = unpack(latent)
            return {name: parts[name] for name in order}

        self._unpack_latent: Any = unpack_in_order
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._unpack_latent = unpack

    def _full_posterior(self) -> dist.Distribution:
        """Return the posterior of all elements."""
        of_numpyro: Any = super()
        return of_numpyro._get_posterior()

    def _get_posterior(self) -> dist.Distribution:
        posterior = self._full_posterior()
        masks = current_masks()
        if not masks:
            return posterior
        return pruned_joint(posterior, self.flat_keep(masks))

    def flat_keep(self, keep: Keep) -> Bool[Array, " n"]:
        """Return the masks as one vector, in the order of the joint posterior; no mask keeps."""
        unknown = sorted(set(keep) - set(self.real_sites()))
        if unknown:
            raise ValueError(
                f"{type(self).__name__}: the sites {unknown} are constrained (positive, say), so zero is no "
                "value of theirs; only sites on the real line can be removed from a joint posterior."
            )
        everything = jnp.ones(self.latent_dim, bool)
        for name, where in self._split(jnp.arange(self.latent_dim)).items():
            if name in keep:
                everything = everything.at[where].set(keep[name])
        return everything

    def _split(self, flat: Array) -> dict[str, Array]:
        """Return the part of a vector that belongs to each site, shaped as the site."""
        parts: Any = self._unpack_latent(flat)
        return dict(parts)

    def real_sites(self) -> list[str]:
        """Return the names of the latent sites that live on the real line, unconstrained."""
        trace: Any = self.prototype_trace
        return [name for name in self._init_locs if is_real(trace[name]["fn"])]

    def marginals(self, params: Mapping[str, Array], keep: Keep) -> dict[str, Normal]:
        """See `CorrelatedGuide.marginals`: of every site on the real line."""
        loc, scale = map(self._split, self.flat_marginals(params, keep))
        return {name: Normal(loc[name], scale[name]) for name in self.real_sites()}

    def posterior(self, params: Mapping[str, Array], keep: Keep) -> dict[str, Normal]:
        """See `ReadableGuide.posterior`: of every site on the real line."""
        return self.marginals(params, keep)

    def flat_marginals(self, params: Mapping[str, Array], keep: Keep) -> tuple[Array, Array]:
        """Return mean and standard deviation of each unconstrained element, given the masks; (n,) each."""
        found = marginals(self._joint(params, self.flat_keep(keep)))
        return found.loc, found.scale

    def centre(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """Return each latent site at the centre of the joint posterior."""
        return self.constrained(params[f"{self.prefix}_loc"])

    def constrained(self, flat: Array) -> dict[str, Array]:
        """Return the latent sites at a point of the space of the joint posterior; (n,)."""
        trace: Any = self.prototype_trace
        unconstrained = self._split(flat)
        return {
            name: biject_to(trace[name]["fn"].support)(value)
            for name, value in unconstrained.items()
        }

    def _joint(
        self, params: Mapping[str, Array], keep: Bool[Array, " n"]
    ) -> reduction.MultivariateNormal | reduction.LowRankNormal:
        raise NotImplementedError


class AutoMultivariate(JointGuide, AutoMultivariateNormal):
    """A normal posterior with a full covariance, which `sparsify` can reduce.

    `numpyro.infer.autoguide.AutoMultivariateNormal`, started at the network.

    Args:
        model: NumPyro program.
        prefix: Of the guide's parameters.
        init_loc_fn: Where each site starts.
        init_scale: Standard deviation that each element starts with.

    Example:
        Two columns that are nearly one: each is uncertain, their sum is not.

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 1)) + 0.1 * jnp.eye(2)[jnp.arange(100) % 2]
        >>> guide = bmr.infer.AutoMultivariate(program)
        >>> fit = bmr.Fit(program, (x, x.sum(1)), guide, batch_size=None)
        >>> state, _ = fit.epoch(fit.init(jax.random.key(1)), jax.random.key(2), num_steps=3000)
        >>> tril = fit.params(state)["auto_scale_tril"]
        >>> covariance = tril @ tril.T
        >>> bool(covariance[0, 1] / covariance[0, 0] < -0.9)
        True

    References:
        Friston, Parr and Zeidman (2019), arXiv:1805.07092, for the reduction.
    """

    scale_tril_constraint = scale_tril

    def __init__(
        self,
        model: Callable,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_network,
        init_scale: float = 0.1,
    ):
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn, init_scale=init_scale)

    @classmethod
    def with_params(cls, params: Mapping[str, Any]) -> Callable[[Callable], Any] | None:
        """See `ReadableGuide.with_params`."""
        return cls if "auto_scale_tril" in params else None

    def _full_posterior(self) -> dist.Distribution:
        loc: Any = numpyro.param(f"{self.prefix}_loc", self._init_latent)
        start = jnp.asarray(self._init_scale * np.eye(self.latent_dim), loc.dtype)
        tril: Any = numpyro.param(
            f"{self.prefix}_scale_tril", start, constraint=self.scale_tril_constraint
        )
        return dist.MultivariateNormal(loc, scale_tril=tril, validate_args=False)

    def _joint(
        self, params: Mapping[str, Array], keep: Bool[Array, " n"]
    ) -> reduction.MultivariateNormal:
        fn: Any = dist.MultivariateNormal(
            params[f"{self.prefix}_loc"],
            scale_tril=params[f"{self.prefix}_scale_tril"],
            validate_args=False,
        )
        return read_joint(pruned_joint(fn, keep))

    def covariance_factors(self, params: Mapping[str, Array], keep: Keep) -> dict[str, Array]:
        """See `ReadableGuide.covariance_factors`: of every site on the real line."""
        rows = self._joint(params, self.flat_keep(keep)).scale_tril
        where = self._split(jnp.arange(self.latent_dim))
        return {name: rows[where[name]] for name in self.real_sites()}

    def condition(self, params: Mapping[str, Array], before: Keep, after: Keep) -> dict[str, Array]:
        """See `CorrelatedGuide.condition`; exact."""
        keep = self.flat_keep(after)
        reduced = _given_zeros(self._joint(params, self.flat_keep(before)), keep)
        idle = jnp.diag(jnp.where(keep, 0.0, self._init_scale))
        return {
            **params,
            f"{self.prefix}_loc": reduced.loc,
            f"{self.prefix}_scale_tril": reduced.scale_tril + idle,
        }


class AutoLowRank(JointGuide, AutoLowRankMultivariateNormal):
    """A normal posterior with a covariance of low rank plus diagonal, which `sparsify` can reduce.

    `numpyro.infer.autoguide.AutoLowRankMultivariateNormal`, started at the network.

    Args:
        model: NumPyro program.
        prefix: Of the guide's parameters.
        init_loc_fn: Where each site starts.
        init_scale: Standard deviation that each element starts with.
        rank: Number of columns of the low-rank factor; by default the root of the number of
            elements.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax.infer import AutoLowRank
        >>> def program():
        ...     numpyro.sample("w", dist.Normal(0, 1).expand([100]).to_event(1))
        >>> guide = AutoLowRank(program, rank=3)
        >>> trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace()
        >>> {name: site["value"].shape for name, site in trace.items() if site["type"] == "param"}
        {'auto_loc': (100,), 'auto_cov_factor': (100, 3), 'auto_scale': (100,)}
    """

    def __init__(
        self,
        model: Callable,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_network,
        init_scale: float = 0.1,
        rank: int | None = None,
    ):
        super().__init__(
            model, prefix=prefix, init_loc_fn=init_loc_fn, init_scale=init_scale, rank=rank
        )

    @classmethod
    def with_params(cls, params: Mapping[str, Any]) -> Callable[[Callable], Any] | None:
        """See `ReadableGuide.with_params`."""
        factor = params.get("auto_cov_factor")
        return None if factor is None else functools.partial(cls, rank=factor.shape[1])

    def _joint(
        self, params: Mapping[str, Array], keep: Bool[Array, " n"]
    ) -> reduction.LowRankNormal:
        loc, factor, scale = (params[f"{self.prefix}_{p}"] for p in ("loc", "cov_factor", "scale"))
        fn: Any = dist.LowRankMultivariateNormal(loc, factor * scale[..., None], jnp.square(scale))
        return read_joint(pruned_joint(fn, keep))

    def condition(self, params: Mapping[str, Array], before: Keep, after: Keep) -> dict[str, Array]:
        """See `CorrelatedGuide.condition`; exact."""
        keep = self.flat_keep(after)
        reduced = _given_zeros(self._joint(params, self.flat_keep(before)), keep)
        scale = jnp.where(keep, jnp.sqrt(reduced.cov_diag), self._init_scale)
        factor = jnp.where(keep[:, None], reduced.cov_factor / scale[:, None], 0.0)
        return {
            **params,
            f"{self.prefix}_loc": reduced.loc,
            f"{self.prefix}_cov_factor": factor,
            f"{self.prefix}_scale": scale,
        }


def _given_zeros(joint: Any, keep: Bool[Array, " n"]) -> Any:
    """Return a joint normal of the elements that are kept, given that the others are zero."""
    unit = Normal(jnp.zeros(keep.shape), jnp.ones(keep.shape))
    return reduction.remove(joint, unit, keep).reduced
