"""A guide with correlated rows and columns in every weight matrix."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float

from bmrjax.families import (
    CollapsedForm,
    GuideForm,
    NormalForm,
    ScaledMatrixNormal,
    normal_parameters,
)
from bmrjax.infer.arguments import Keep
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.guide import AutoMeanField, Temperature
from bmrjax.infer.init import init_to_network
from bmrjax.reduction import Normal

# Enough for a system of a few thousand correlated weights; a mean that is not quite there yet is
# where the re-fit goes on from.
_ITERATIONS = 200


class AutoMatrixNormal(CorrelatedGuide, AutoMeanField):
    """A guide in which the elements of a weight matrix are correlated, which `sparsify` can reduce.

    Each site of two or more dimensions with a normal prior, outside of plates, gets a
    `distributions.ScaledMatrixNormal`: a scale of its own for every element, as in `AutoMeanField`,
    and a triangular factor that correlates the rows (the first axis) and one for the columns (the
    others together). It starts at the mean-field posterior, which it contains. All other sites are
    as in `AutoMeanField`.

    A step costs two more products per matrix, n²p + np² for n rows and p columns.

    Args:
        model: NumPyro program.
        prefix: Of the guide's parameters.
        init_loc_fn: Where each site starts.
        init_scale: Standard deviation that each site starts with.
        init_inclusion: Probability that each spike-and-slab indicator starts with.
        temperature: Of its relaxation: a number, or an optax schedule of the training step.
        max_side: A side that is longer than this stays uncorrelated.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> from bmrjax.infer import AutoMatrixNormal
        >>> def program():
        ...     numpyro.sample("weight", dist.Normal(0, 1).expand([8, 3]).to_event(2))
        ...     numpyro.sample("bias", dist.Normal(0, 1).expand([8]).to_event(1))
        >>> guide = AutoMatrixNormal(program)
        >>> _ = numpyro.handlers.seed(guide, 0)()
        >>> guide.matrix_sites()  # the bias is as in AutoMeanField
        ['weight']

    References:
        Louizos and Welling (2016), Structured and efficient variational deep learning with matrix
        Gaussian posteriors; Friston, Parr and Zeidman (2019), arXiv:1805.07092, for the reduction.
    """

    def __init__(
        self,
        model: Callable,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_network,
        init_scale: float = 0.1,
        init_inclusion: float = 0.9,
        temperature: Temperature = 0.5,
        max_side: int = 1024,
    ):
        if max_side < 1:
            raise ValueError(f"AutoMatrixNormal: max_side must be at least 1, got {max_side}.")
        self.max_side = max_side
        super().__init__(
            model,
            prefix=prefix,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            init_inclusion=init_inclusion,
            temperature=temperature,
        )

    def matrix_sites(self) -> list[str]:
        """Return the names of the sites with a matrix posterior, once the guide has met its model."""
        return [name for name in self._init_locs if self._is_matrix(name)]

    def _is_matrix(self, name: str) -> bool:
        trace: Any = self.prototype_trace
        init, site = self._init_locs[name], trace[name]
        return (
            jnp.ndim(init) >= 2
            and min(_sides(init).values()) > 1
            and not site["cond_indep_stack"]
            and normal_parameters(site["fn"]) is not None
        )

    @classmethod
    def with_params(cls, params: Mapping[str, Any]) -> Callable[[Callable], Any] | None:
        """See `ReadableGuide.with_params`."""
        factors = ("_auto_row_factor", "_auto_column_factor")
        return cls if any(name.endswith(factors) for name in params) else None

    def _form(self, name: str) -> GuideForm:
        """Learn the precisions that are collapsed otherwise: their form is that of independent normals."""
        form = super()._form(name)
        return NormalForm() if isinstance(form, CollapsedForm) else form

    def site_posterior(self, name: str, fn: Any) -> dist.Distribution:
        """See `AutoMeanField.site_posterior`."""
        if not self._is_matrix(name):
            return super().site_posterior(name, fn)
        base = fn.base_dist if fn.event_dim else fn
        factors = [self._factor(name, side, size) for side, size in _sides(base.loc).items()]
        return ScaledMatrixNormal(base.loc, base.scale, *factors)

    def _factor(self, name: str, side: str, size: int) -> Array:
        if size > self.max_side:
            return jnp.eye(size)
        factor: Any = numpyro.param(
            f"{name}_{self.prefix}_{side}_factor", jnp.zeros((size, size)), event_dim=2
        )
        return factor

    def _matrix(self, params: Mapping[str, Array], name: str) -> ScaledMatrixNormal:
        loc, scale = (params[f"{name}_{self.prefix}_{part}"] for part in ("loc", "scale"))
        factors = [
            params.get(f"{name}_{self.prefix}_{side}_factor", jnp.eye(size))
            for side, size in _sides(loc).items()
        ]
        return ScaledMatrixNormal(loc, scale, *factors)

    def _of_sites(self, params: dict[str, Array]) -> dict[str, dist.Distribution]:
        found = super()._of_sites(params)
        return found | {name: self._matrix(params, name) for name in self.matrix_sites()}

    def _margins_of_sites(self, params: dict[str, Array]) -> dict[str, dist.Distribution]:
        found = super()._margins_of_sites(params)
        margins = self.marginals(params, {})
        return found | {name: dist.Normal(q.loc, q.scale) for name, q in margins.items()}

    def marginals(self, params: Mapping[str, Array], keep: Keep) -> dict[str, Normal]:
        """See `CorrelatedGuide.marginals`: of every matrix."""
        found = {}
        for name in self.matrix_sites():
            fn = self._matrix(params, name)
            if name in keep:
                fn = fn.without(keep[name])
            # A removed element has no variance; a criterion wants a positive scale all the same.
            scale = jnp.where(fn.keep, jnp.sqrt(fn.variance), fn.scale)
            found[name] = Normal(fn.loc, scale)
        return found

    def posterior(self, params: Mapping[str, Any], keep: Keep) -> dict[str, Any]:
        """See `ReadableGuide.posterior`."""
        return super().posterior(params, keep) | self.marginals(params, keep)

    def condition(self, params: Mapping[str, Array], before: Keep, after: Keep) -> dict[str, Array]:
        """See `CorrelatedGuide.condition`: the means are those given the zeros, to solver precision.

        The covariance is that given the *noise* of what is removed, which stays in the family; the
        re-fit takes it from there.
        """
        found = dict(params)
        for name in set(self.matrix_sites()) & set(after):
            fn = self._matrix(params, name)
            keep = jnp.asarray(after[name])
            if name in before:
                fn = fn.without(jnp.asarray(before[name]))
            found[f"{name}_{self.prefix}_loc"] = jnp.where(keep, conditional_mean(fn, keep), fn.loc)
        return found


def _sides(loc: Any) -> dict[str, int]:
    shape = jnp.shape(loc)
    return {"row": shape[0], "column": math.prod(shape[1:])}


def conditional_mean(fn: ScaledMatrixNormal, keep: Bool[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Return the mean given that what `keep` drops, and `fn` still keeps, is zero.

    By conjugate gradients: a product with the covariance takes four small matrix products, and the
    covariance itself is never formed.

    Args:
        fn: The posterior before the removal.
        keep: True stays.

    Returns:
        The mean; that of `fn` if the solution is not finite.
    """
    gone = fn.keep & ~keep

    def times_covariance(x: Array) -> Array:
        return fn.scale * fn.covariance_of_unit(fn.scale * x)

    def system(x: Array) -> Array:
        return jnp.where(gone, times_covariance(jnp.where(gone, x, 0.0)), x)

    diagonal = jnp.where(gone, fn.variance, 1.0)
    right = jnp.where(gone, fn.loc, 0.0)
    weights, _ = cg(system, right, tol=1e-5, maxiter=_ITERATIONS, M=lambda x: x / diagonal)
    mean = fn.loc - jnp.where(keep & fn.keep, times_covariance(jnp.where(gone, weights, 0.0)), 0.0)
    return jnp.where(jnp.all(jnp.isfinite(mean)), mean, fn.loc)
