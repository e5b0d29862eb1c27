"""Guides of loaded results: which sites are latent, with targets and without, and with names and without."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoGuideList, AutoMultivariateNormal, AutoNormal

from bmrjax.infer.joint_latents import joint_latents
from bmrjax.infer.prepare_guide import latent_sites_of, prepare_guide

ROWS = 6
X = jnp.linspace(1.0, 2.0, 3 * ROWS).reshape(ROWS, 3)
Y = X[:, 0]


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w + b.sum(), 1.0), obs=y)


def outcome_first(x, before=None, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("before", dist.Normal(mean, 1.0), obs=before)
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x[:, 0] * effect, 0.5), obs=y)


def joint_params(size):
    return {"auto_loc": jnp.arange(float(size)), "auto_scale_tril": jnp.eye(size)}


def latents(guide):
    return set(guide.prototype_trace) & set(latent_sites_of(guide))


@pytest.mark.parametrize("names", [None, ("w", "b")])
@pytest.mark.parametrize("batch", [(X, Y), (X,)])
def test_parts_of_a_list_have_the_sites_of_their_own_program(batch, names):
    joint = AutoMultivariateNormal(numpyro.handlers.block(linear, hide=["b"]))
    other = AutoNormal(numpyro.handlers.block(linear, hide=["w"]))
    guide = AutoGuideList(linear)
    guide.append(joint)
    guide.append(other)
    params = joint_params(3) | {"b_auto_loc": jnp.ones(2), "b_auto_scale": jnp.ones(2)}
    prepare_guide(linear, guide, params, batch, latent_sites=names)
    assert (latents(joint), latents(other)) == ({"w"}, {"b"})
    median = guide.median(params)
    assert {name: value.tolist() for name, value in median.items()} == {"w": [0, 1, 2], "b": [1, 1]}


def test_an_outcome_before_the_random_effect_is_not_taken_for_it():
    guide = AutoMultivariateNormal(outcome_first)
    with pytest.raises(
        ValueError, match=r"\['before', 'effect', 'y'\] are latent.*Give the targets"
    ):
        prepare_guide(outcome_first, guide, joint_params(1 + ROWS), (X,))
    names = ("mean", "effect")
    prepare_guide(outcome_first, guide, joint_params(1 + ROWS), (X,), latent_sites=names)
    assert latents(guide) == {"mean", "effect"}
    median = guide.median(joint_params(1 + ROWS))
    assert {n: v.tolist() for n, v in median.items()} == {"effect": [0, 1, 2, 3, 4, 5], "mean": 6}


def test_with_the_targets_names_are_not_needed():
    guide = AutoMultivariateNormal(outcome_first)
    prepare_guide(outcome_first, guide, joint_params(1 + ROWS), (X, Y, Y))
    assert latent_sites_of(guide) == ("mean", "effect")


@pytest.mark.parametrize("names", [None, ("mean", "effect")])
def test_other_rows_than_those_of_the_fit_are_refused(names):
    guide = AutoMultivariateNormal(outcome_first)
    batch = (X[:2], Y[:2], Y[:2])
    with pytest.raises(ValueError, match=r"has 7 elements.*'effect': 2\).*as many rows"):
        prepare_guide(outcome_first, guide, joint_params(1 + ROWS), batch, latent_sites=names)
    assert latent_sites_of(guide) is None


def sites(**sizes):
    priors = {name: dist.Normal(jnp.zeros(size), 1.0) for name, size in sizes.items()}
    return {name: {"fn": prior, "kwargs": {}} for name, prior in priors.items()}


def test_a_choice_by_size_is_made_only_if_it_is_the_only_one():
    found = sites(w=2, a=6, b=4, c=3)
    assert joint_latents(found, "abc", jnp.zeros(2 + 7)) == {"w", "b", "c"}
    assert joint_latents(found, "abc", jnp.zeros(2 + 13)) == {"w", "a", "b", "c"}
    assert joint_latents(found, "abc", jnp.zeros(2)) == {"w"}
    for taken, size in (("abc", 1), ("abc", 2 + 5), ("", 2)):
        with pytest.raises(ValueError, match=f"has {size} elements.*another number"):
            joint_latents(found, taken, jnp.zeros(size))
    with pytest.raises(ValueError, match="several choices"):  # c + b or d
        joint_latents(sites(c=3, b=4, d=7), "bcd", jnp.zeros(7))


def test_many_sites_with_an_element_per_row_are_counted_in_no_time():
    found = sites(**{f"site{i}": 2 for i in range(60)})  # 2^60 choices
    with pytest.raises(ValueError, match="several choices"):
        joint_latents(found, found, jnp.zeros(60))
    assert joint_latents(found, found, jnp.zeros(120)) == set(found)
    with pytest.raises(ValueError, match="another number"):
        joint_latents(found, found, jnp.zeros(61))


@pytest.mark.parametrize("names", [None, ("w", "b")])
def test_a_site_of_another_name_than_in_the_fit_is_refused(names):
    def program(x, y=None, name="b"):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        offset = numpyro.sample(name, dist.Normal(0, 1))
        if y is not None:
            numpyro.sample("only_with_targets", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(w.sum() + offset + x, 1.0), obs=y)

    def renamed(x, y=None):
        program(x, y, name="c")

    x = jnp.zeros(5)
    params = {f"{n}_auto_{part}": jnp.ones(()) for n in "b" for part in ("loc", "scale")}
    params |= {f"w_auto_{part}": jnp.ones(2) for part in ("loc", "scale")}
    prepare_guide(program, AutoNormal(program), params, (x,), latent_sites=names)
    # A site that is only there with targets is not missed.
    fitted = None if names is None else (*names, "only_with_targets")
    more = params | {f"only_with_targets_auto_{part}": jnp.ones(()) for part in ("loc", "scale")}
    prepare_guide(program, AutoNormal(program), more, (x,), latent_sites=fitted)
    with pytest.raises(ValueError, match=r"had the latent sites \['b'\].*it has \['c'\] instead"):
        prepare_guide(renamed, AutoNormal(renamed), params, (x,), latent_sites=names)
