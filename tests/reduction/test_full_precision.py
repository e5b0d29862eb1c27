"""Reductions on devices that are less exact than CPUs: products of matrices, quotients and roots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

from bmrjax import reduction
from bmrjax.criteria import RegularizedHorseshoe, SitePosteriors
from bmrjax.reduction import LowRankNormal, MatrixNormal, MultivariateNormal, Normal

N, P = 4, 3
LOC = jnp.linspace(-1.0, 1.0, N)
PRIOR = Normal(jnp.zeros(N), jnp.ones(N))
WIDE = Normal(jnp.zeros(()), jnp.ones(()))
JOINT = MultivariateNormal(LOC, 0.1 * jnp.eye(N) + 0.01 * jnp.tri(N))
LOW_RANK = LowRankNormal(LOC, 0.1 * jnp.ones((N, 2)), 0.01 * jnp.ones(N))
MATRIX = MatrixNormal(jnp.ones((N, P)), 0.1 * jnp.eye(N), 0.1 * jnp.eye(P))
SITES = SitePosteriors({"w": Normal(LOC, 0.1 * jnp.ones(N))}, {"w": PRIOR})
STAYS = jnp.arange(N) > 1


def products(jaxpr):
    """Yield the precision of every product of matrices in a program, also in those inside of it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):  # fmt: skip
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from products(getattr(inner, "jaxpr", inner))


CASES = {
    "joint": lambda: reduction.multivariate_normal(JOINT, PRIOR, Normal(LOC, 0.5 * jnp.ones(N))),
    "joint, removed": lambda: reduction.remove(JOINT, PRIOR, STAYS),
    "joint, each": lambda: reduction.delta_f_each(JOINT, PRIOR),
    "greedy": lambda: reduction.prune_greedily(JOINT, PRIOR),
    "low rank": lambda: reduction.low_rank_normal(LOW_RANK, PRIOR, Normal(LOC, 0.5 * jnp.ones(N))),
    "low rank, removed": lambda: reduction.remove(LOW_RANK, PRIOR, STAYS),
    "matrix": lambda: reduction.matrix_normal(
        MATRIX, WIDE, Normal(jnp.zeros(()), jnp.asarray(0.5))
    ),
    "matrix, rows": lambda: reduction.delta_f_rows(MATRIX, WIDE),
    "matrix, columns": lambda: reduction.delta_f_columns(MATRIX, WIDE),
    "horseshoe": lambda: RegularizedHorseshoe()(SITES).keep,
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_in_full_precision(name):
    # A GPU would multiply in TensorFloat-32, wrong by 1e-3, where large numbers cancel.
    found = list(products(jax.make_jaxpr(CASES[name])().jaxpr))
    assert all(one is not None and {str(p) for p in one} == {"HIGHEST"} for one in found), found
    if name not in ("joint, each", "matrix, rows", "matrix, columns"):
        assert found


def inexact(jaxpr, consts, *args):
    """Evaluate a program with quotients and roots that are off by one in the last place, as on GPUs."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(x):
        return x.val if isinstance(x, Literal) else known[x]

    for equation in jaxpr.eqns:
        values = [read(x) for x in equation.invars]
        name, inner = equation.primitive.name, equation.params.get("jaxpr")
        if inner is not None:
            found = inexact(inner.jaxpr, inner.consts, *values)
        else:
            found = equation.primitive.bind(*values, **equation.params)
            found = found if equation.primitive.multiple_results else [found]
        if name in ("div", "sqrt", "rsqrt") and jnp.issubdtype(found[0].dtype, jnp.floating):
            found = [jnp.nextafter(x, jnp.full_like(x, jnp.inf)) for x in found]
        known.update(zip(equation.outvars, found, strict=True))
    return [read(x) for x in jaxpr.outvars]


def test_an_unchanged_prior_gives_exactly_zero_where_quotients_are_inexact():
    scale, loc, prior_scale = (
        jnp.asarray(x.ravel().astype(np.float32))
        for x in np.meshgrid([1e-6, 0.3, 1e3], [0.0, -1.0, 1e6], [1e-3, 0.7, 1e3])
    )

    def unchanged(loc, scale, prior_scale):
        p = Normal(jnp.full_like(loc, 0.4), prior_scale)
        return reduction.normal(Normal(loc, scale), p, p).delta_f

    program = jax.make_jaxpr(unchanged)(loc, scale, prior_scale)
    (delta_f,) = inexact(program.jaxpr, program.consts, loc, scale, prior_scale)
    np.testing.assert_array_equal(delta_f, 0.0)


def test_removal_of_a_weight_hardly_changes_where_quotients_are_inexact():
    loc, scale = jnp.linspace(-3.0, 3.0, 13), jnp.geomspace(1e-4, 0.9, 13)

    def removed(loc, scale):
        return reduction.delta_f_each(Normal(loc, scale), Normal(jnp.zeros(13), jnp.ones(13)))

    program = jax.make_jaxpr(removed)(loc, scale)
    (delta_f,) = inexact(program.jaxpr, program.consts, loc, scale)
    np.testing.assert_allclose(delta_f, removed(loc, scale), rtol=2e-6)
