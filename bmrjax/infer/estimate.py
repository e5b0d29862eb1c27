"""Three estimators of the expected log likelihood, as NumPyro ELBOs."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.infer import TraceMeanField_ELBO
from numpyro.infer.elbo import ELBO

from bmrjax.distributions import PrecisionNormal, expected_log_prob
from bmrjax.families import has_closed_form, inside, normal_parameters, read
from bmrjax.fast_noise import normal_shapes
from bmrjax.handlers import hide_data
from bmrjax.infer.mixed_precision import of_program
from bmrjax.infer.propagate import Context, GammaVariable, Uncertain, is_uncertain, propagate
from bmrjax.infer.tracing import sites_of
from bmrjax.reduction import Normal

Estimator = Literal["global", "local", "moments"]


def elbo(estimator: Estimator) -> ELBO:
    """Return the ELBO whose expected log likelihood is estimated in the named way.

    Args:
        estimator: ``"global"``, ``"local"`` or ``"moments"``; see `PropagatedELBO`.

    Raises:
        ValueError: For another name.

    Example:
        >>> from bmrjax.infer import elbo
        >>> [type(elbo(name)).__name__ for name in ("global", "local", "moments")]
        ['TraceMeanField_ELBO', 'PropagatedELBO', 'PropagatedELBO']
    """
    if estimator == "global":
        return TraceMeanField_ELBO()
    return PropagatedELBO(estimator)


def drawn_shapes(loss: Any, guide: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the normals that a loss draws, site by site, for `bmrjax.handlers.fast_noise`.

    Args:
        loss: A NumPyro ELBO. `PropagatedELBO` draws few of the sites, so there each is drawn by itself.
        guide: A guide that has been run once.
    """
    return {} if isinstance(loss, PropagatedELBO) else normal_shapes(guide)


class PropagatedELBO(ELBO):
    r"""An ELBO that does not sample the weights.

    The divergence is that of `numpyro.infer.TraceMeanField_ELBO`. For the expected log likelihood, the
    program is run with means and variances in place of the latent sites whose prior and posterior
    are independent normals, by an interpreter of its jaxpr:

    - ``"local"``: where an operation is not linear, its arguments are sampled, one sample per data point.
      Exact in distribution for dense layers. Positions that share a filter, time steps that share a
      weight, and tokens get samples of their own: the distribution of each is right, their joint
      distribution is not. The gradient varies less than that of one sample of the weights.
    - ``"moments"``: nothing is sampled on the way. Exact for linear maps of independent elements, and for the
      rectifier of a normal; elementwise functions by quadrature, products of two
      uncertain arrays and gates as if the two were independent; steps, as of a comparison, to a few
      per cent. A normal likelihood is then taken in closed form; the parameters of any other are
      sampled once per data point, at the last layer, and so are observed values that depend on weights. Not
      for attention, whose softmax has no such rule. The units of a layer count as independent, so the
      spread of one that is normalised by the others comes out too large.

    A function with a derivative of its own (`jax.custom_vjp`) keeps it where it is elementwise; one
    that holds a matrix product is differentiated through.

    A gamma posterior (`AutoMeanField` has one for a site that asks) that is the precision of a
    `distributions.PrecisionNormal` is taken in closed form in both. All other latent sites (scales,
    say) are sampled, one sample a step.

    Args:
        estimator: ``"local"`` or ``"moments"``.

    Raises:
        ValueError: On use, without a site whose prior and posterior are independent normals.

    Example:
        The expected log likelihood of a regression is in closed form, so the loss does not vary with the key:

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax.infer import AutoMeanField, PropagatedELBO
        >>> def program(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (10, 2))
        >>> params = {"w_auto_loc": jnp.array([2.0, 0.0]), "w_auto_scale": jnp.array([0.1, 0.1])}
        >>> guide, loss = AutoMeanField(program), PropagatedELBO("moments")
        >>> _ = numpyro.handlers.seed(guide, 0)(x, x[:, 0])
        >>> first, second = (
        ...     loss.loss(jax.random.key(i), params, program, guide, x, x[:, 0]) for i in (1, 2)
        ... )
        >>> bool(jnp.isclose(first, second))
        True

    References:
        Kingma, Salimans and Welling (2015), for the local reparameterisation; Haussmann, Hamprecht and
        Kandemir (2019), Wu et al. (2019), for moments; Beckers et al. (2024), section 3.
    """

    def __init__(self, estimator: Literal["local", "moments"]):
        if estimator not in ("local", "moments"):
            raise ValueError(
                f"estimator must be 'global', 'local' or 'moments', got {estimator!r}."
            )
        self.estimator: Literal["local", "moments"] = estimator
        super().__init__(num_particles=1)

    def loss_with_mutable_state(
        self,
        rng_key: Array,
        param_map: Mapping[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Return the negative ELBO, and the new mutable sites; see NumPyro's `ELBO`."""
        kl_key, guide_key, model_key, noise_key, last_key = jax.random.split(rng_key, 5)
        params = dict(param_map)
        divergence: Any = TraceMeanField_ELBO().loss(
            kl_key, params, hide_data(model), guide, *args, **kwargs
        )
        drawn = sites_of(guide, args, kwargs, key=guide_key, values=params)
        latents = {name: site for name, site in drawn.items() if site["type"] == "sample"}
        normals = _carried(model, params, latents, args, kwargs)
        if not normals:
            raise ValueError(
                f"estimator={self.estimator!r} carries sites whose prior and posterior are independent "
                "normals, and this program with this guide has none. Use FitOptions(estimator='global'), or "
                "infer.AutoMeanField as the guide."
            )
        values = {name: site["value"] for name, site in latents.items()}
        values |= {name: _moments(latents[name]["fn"]) for name in normals}
        gammas = {name: _gamma(site["fn"]) for name, site in latents.items()}
        values |= {name: value for name, value in gammas.items() if value is not None}

        def observe(values: dict[str, Array]) -> tuple[Any, Any]:
            sites = sites_of(model, args, kwargs, key=model_key, values={**params, **values})
            observed = {
                name: (site["fn"], site["value"], _scale(site))
                for name, site in sites.items()
                if site["type"] == "sample" and site["is_observed"]
            }
            mutable = {n: site["value"] for n, site in sites.items() if site["type"] == "mutable"}
            return observed, mutable

        run = of_program(propagate)  # what it runs are operations of its own
        observed, mutable = run(observe, self.estimator, noise_key, values)
        total = -divergence
        for i, (fn, value, scale) in enumerate(observed.values()):
            key = jax.random.fold_in(last_key, i)
            expected = self._expected(fn, value, key)
            # A scale per row, or one for all of them.
            total = total + (
                scale * jnp.sum(expected) if jnp.ndim(scale) == 0 else jnp.sum(scale * expected)
            )
        mutable = jax.tree.map(_mean, mutable, is_leaf=is_uncertain)
        return {"loss": -total, "mutable_state": mutable or None}

    def _expected(self, fn: Any, value: Any, key: Array) -> Array:
        """Return the expected log density of observed values under an uncertain distribution."""
        leaves, structure = jax.tree.flatten(fn, is_leaf=is_uncertain)
        last = Context(self.estimator, key)
        if is_uncertain(value):
            # A residual, say: it and the distribution may have a variable in common.
            drawn = [last.draw(x) for x in leaves]
            return jnp.asarray(jax.tree.unflatten(structure, drawn).log_prob(last.draw(value)))
        if not any(map(is_uncertain, leaves)):
            return jnp.asarray(fn.log_prob(value))
        at_mean: Any = jax.tree.unflatten(structure, [_mean(x) for x in leaves])
        if isinstance(at_mean, dist.Unit):
            return jnp.asarray(at_mean.log_prob(value))  # a factor is what it adds
        closed = self._under_gamma(fn, value, last)
        if closed is not None:
            return closed
        leaves = [last.draw(x) if isinstance(x, GammaVariable) else x for x in leaves]
        at_mean = jax.tree.unflatten(structure, [_mean(x) for x in leaves])
        if self.estimator == "moments":
            spread = [x.variance if is_uncertain(x) else x for x in leaves]
            centre = normal_parameters(at_mean)
            variance = normal_parameters(jax.tree.unflatten(structure, spread))
            # Only the location may vary: then the leaf that it was built from is the one that does.
            if centre is not None and variance is not None and _is_location(leaves, at_mean):
                (loc, scale), (variance, _) = centre, variance
                at_centre = jnp.asarray(dist.Normal(loc, scale).log_prob(value))
                return _over_events(at_centre - 0.5 * variance / scale**2, fn)
        drawn = [last.draw(x) for x in leaves]
        return jnp.asarray(jax.tree.unflatten(structure, drawn).log_prob(value))

    def _under_gamma(self, fn: Any, value: Any, last: Context) -> Array | None:
        """Return the expected log density of a normal whose precision has a gamma posterior."""
        likelihood = inside(fn)
        if not isinstance(likelihood, PrecisionNormal):
            return None
        loc, precision = likelihood.loc, likelihood.precision
        # Where the program draws it too, in its location say, the likelihood must see that draw.
        if not isinstance(precision, GammaVariable) or precision.is_drawn:
            return None
        if isinstance(loc, GammaVariable):
            return None
        spread: Any = 0.0
        if isinstance(loc, Uncertain):
            if self.estimator == "moments":
                spread = loc.variance
            else:
                loc = last.draw(loc)
        square = jnp.square(value - _mean(loc)) + spread
        return _over_events(expected_log_prob(square, precision.concentration, precision.rate), fn)


def _over_events(log_prob: Array, fn: Any) -> Array:
    """Return the log density of each event of a distribution, given that of each element."""
    return jnp.sum(log_prob, range(log_prob.ndim - fn.event_dim, log_prob.ndim))


def _carried(
    model: Callable, params: Any, latents: Mapping[str, Any], args: tuple, kwargs: Any
) -> list[str]:
    """Return the sites that need not be sampled: normals under a prior with a closed form."""
    values = {name: site["value"] for name, site in latents.items()}
    sites = sites_of(model, args, kwargs, values={**params, **values})
    return [
        name
        for name, site in latents.items()
        if name in sites
        and isinstance(q := read(site["fn"]), Normal)
        and has_closed_form(q, read(sites[name]["fn"]))
    ]


def _moments(fn: Any) -> Uncertain:
    shape = fn.batch_shape + fn.event_shape
    mean, variance = (jnp.broadcast_to(x, shape) for x in (fn.mean, fn.variance))
    return Uncertain(mean, variance, distinct=True)


def _gamma(fn: Any) -> GammaVariable | None:
    shape = fn.batch_shape + fn.event_shape
    base: Any = inside(fn)
    if not isinstance(base, dist.Gamma):
        return None
    base = cast(Any, base)
    concentration, rate = (jnp.broadcast_to(x, shape) for x in (base.concentration, base.rate))
    return GammaVariable(concentration, rate)


def _scale(site: Mapping[str, Any]) -> Array:
    return jnp.asarray(1.0 if site["scale"] is None else site["scale"])


def _mean(value: Any) -> Any:
    return value.mean if is_uncertain(value) else value


def _is_location(leaves: list[Any], at_mean: Any) -> bool:
    """Say whether the only uncertain leaf is the location of a normal."""
    base = at_mean
    while not isinstance(base, dist.Normal):
        base = base.base_dist
    uncertain = [_mean(x) for x in leaves if is_uncertain(x)]
    return len(uncertain) == 1 and base.loc is uncertain[0]
