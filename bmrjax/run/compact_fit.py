"""A fit that goes on with smaller networks."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpyro.infer.autoguide import AutoNormal

from bmrjax.criteria import Criterion, Groups
from bmrjax.handlers import temper
from bmrjax.infer.arguments import arguments
from bmrjax.infer.engine import Engine
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.state import State
from bmrjax.infer.with_networks import with_networks
from bmrjax.run.at_center import buffers_as_given, networks_at_center
from bmrjax.run.cut_to_kept import CutToKept, cut_groups
from bmrjax.run.fit import Fit
from bmrjax.run.fit_state import FitState, check_state
from bmrjax.run.inspection import Inspection
from bmrjax.run.serial import one_at_a_time
from bmrjax.structure.compact import Compact, compact_for_any


@dataclass(frozen=True)
class CompactFit:
    """A fit with smaller networks, and where it is: what `compact_fit` returns.

    Attributes:
        fit: The fit, of the same program with the smaller networks: ``fit.model``.
        state: Where it is. Its arrays are its own.
        networks: What became of each network, by the name of its random module. Printed, each is a table of
            what was removed, and of what stays, with the reason. Their weights are the posterior means.

    Example:
        A draw of the old weights, as the smaller network has them:

        >>> import dataclasses, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> x, network = jnp.ones((20, 4)), bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> program = bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0))
        >>> fit = bmr.Fit(program, (x, jnp.zeros(20, int)), batch_size=None)
        >>> state = fit.init(jax.random.key(1))
        >>> reads = jnp.zeros((2, 8), bool).at[:, :3].set(True)  # the last five are not read
        >>> state = dataclasses.replace(state, keep={**state.keep, "net.layers.1.weight": reads})
        >>> small = bmr.compact_fit(fit, state)
        >>> draws = fit.result(state).sample(jax.random.key(2), 1, x)
        >>> draw = small.cut({name: value[0] for name, value in draws.items()})
        >>> draw["net.layers.0.weight"].shape, small.networks["net"].after.parameters
        ((3, 4), 23)
    """

    fit: Fit
    state: FitState
    networks: dict[str, Compact]
    _cut: CutToKept = field(repr=False)

    def cut(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return values of the old program's sites, such as a draw, as the smaller program has them.

        Args:
            values: Site name to value; sites without masks of a network's arrays stay as they are.
        """
        arrays = self._cut.arrays
        return {
            name: self._cut.value(name, np.asarray(value), arrays[name].after)
            if name in arrays
            else np.asarray(value)
            for name, value in values.items()
        }


@one_at_a_time
def compact_fit(fit: Fit, state: FitState) -> CompactFit:
    """Return a fit that goes on from a state with smaller networks, without the units that are removed.

    Masked weights are zero, but are multiplied and updated all the same. Once masks have emptied whole
    neurons, channels or heads, this takes them out of the networks of the program's random modules, with
    their posterior, the optimiser's moments, the masks and what the criterion remembers. Steps are then as
    fast as those of a network of that size, after compiling them once.

    It is exact: what is removed adds nothing to the outputs, whatever the kept weights are, so each draw from
    the posterior predicts the same as before. A unit that has a bias but no weights into it is a random
    number, and stays; remove whole units, with their bias (`structure.unit_groups`). What was
    kept of the weights of a removed unit leaves the divergence, so the free energy is lower by that.
    The next update of each kept weight is the one that it would have had, for optimisers that treat elements
    by themselves (Adam, AdaBelief, RMSProp); `infer.NaturalGradient` limits its steps by means over a site.
    Criteria that count how much of a layer is kept, such as `criteria.SpikeAndSlab`, count what is left.

    Args:
        fit: After `Fit.init`. Its guide is an `infer.AutoMeanField` or NumPyro's `AutoNormal`.
        state: Where it is. Kept intact.

    Returns:
        The smaller fit, its state, and reports of the networks; see `CompactFit`. Its priors are those of the
        old one, also where they depend on how many inputs a unit had.

    Raises:
        TypeError: For something else than a fit and a state, or another guide.
        ValueError: If there is nothing to remove; or if a variable of a prior cannot be cut, by its name.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(4, (8,), 2, key=jax.random.key(0))
        >>> units = bmr.structure.unit_groups(network, jnp.ones(4))
        >>> x = jax.random.normal(jax.random.key(1), (200, 4))
        >>> fit = bmr.Fit(
        ...     bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0)),
        ...     (x, (x[:, 0] > 0).astype(int)),
        ...     criterion=bmr.criteria.Shrinkage(groups=units),
        ... )
        >>> state, _ = fit.epoch(fit.init(jax.random.key(2)), jax.random.key(3), num_steps=500)
        >>> state, _ = fit.reduce(state)
        >>> small = bmr.compact_fit(fit, state)
        >>> bool(small.state.keep["net.layers.0.bias"].size < 8)
        True
        >>> state, _ = small.fit.epoch(small.state, jax.random.key(4), num_steps=100)
    """
    if not isinstance(fit, Fit):
        raise TypeError(f"compact_fit: fit is a {type(fit).__name__}; give a bmr.Fit.")
    check_state(state, "compact_fit")
    _check_guide(fit.guide)
    params, keep = fit.placement.fetch((fit.params(state), dict(state.keep)))
    args, kwargs = arguments(fit.example)
    found = networks_at_center(fit.model, fit.guide, params, keep, args, kwargs)
    if not found:
        raise ValueError(
            "compact_fit: the program calls no random module, so there is no network to make smaller."
        )
    networks = {
        name: compact_for_any(network, *inputs, varies=_masks(name, keep))
        for name, (network, inputs) in found.items()
    }
    arrays = {f"{name}.{a.name}": a for name, small in networks.items() for a in small.arrays}
    if all(a.before == a.after for a in arrays.values()):
        stays = [f"{name}: {why}" for name, a in arrays.items() for why in a.stays]
        raise ValueError(
            "compact_fit: there is nothing to remove: no neuron, channel or head has lost all its weights "
            "and its bias, or all weights that read it. Remove whole units, by a criterion with "
            f"groups=bmr.structure.unit_groups(...). {'; '.join(stays[:3])}".rstrip()
        )
    cut = CutToKept(arrays)
    smaller = _smaller(fit, {name: small.network for name, small in networks.items()}, cut)
    start = smaller.init(jax.random.key(0))
    buffers = buffers_as_given(smaller.model, args, kwargs) if state.svi.mutable else {}
    svi = _svi(cut, state.svi, start.svi, buffers)
    state = FitState(
        smaller.placement.parted(svi),
        smaller.placement.parted(cut.tree(dict(state.keep), start.keep, "the masks")),
        smaller.placement.parted(cut.tree(state.memory, start.memory, "the criterion's memory")),
    )
    return CompactFit(smaller, state, networks, cut)


def _check_guide(guide: Any) -> None:
    if type(guide) in (AutoMeanField, AutoNormal):
        return
    raise TypeError(
        f"compact_fit: the guide is a {type(guide).__name__}, whose parameters are not one per element of a "
        "site. Fit with guide=bmr.infer.AutoMeanField(program), or compact the network once it is "
        "fitted, by Result.compact."
    )


def _masks(name: str, keep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the masks of a network's arrays by the path within it."""
    prefix = f"{name}."
    return {site.removeprefix(prefix): m for site, m in keep.items() if site.startswith(prefix)}


def _svi(cut: CutToKept, old: State, new: State, buffers: Mapping[str, Any]) -> State:
    """Return the optimised part of a state, cut.

    Args:
        cut: What is removed.
        old: State of the fit.
        new: Of the smaller fit at its start.
        buffers: Running statistics, cut, by mutable site.
    """
    fresh = dataclasses.replace(new, mutable=None)
    found = cut.tree(dataclasses.replace(old, mutable=None), fresh, "the optimiser's state")
    mutable = old.mutable
    if mutable is not None:
        mutable = {name: buffers.get(name, value) for name, value in mutable.items()}
        mutable = cut.tree(mutable, new.mutable, "what the program changes")
    return dataclasses.replace(found, mutable=mutable)


def _smaller(fit: Fit, networks: Mapping[str, Any], cut: CutToKept) -> Fit:
    """Return a fit of the same program and data with smaller networks, which has not begun."""
    program = fit.model
    if isinstance(program, with_networks):
        networks, program = {**program.networks, **networks}, program.fn
    model = with_networks(program, networks)
    guide = _guide_for(fit.guide, model)
    old = fit.engine
    tempered = isinstance(old.model, temper) and old.model is not fit.model
    engine = Engine(
        temper(model, temperature=old.model.temperature) if tempered else model,
        guide,
        optimizer=old.optimizer,
        loss=old.loss,
        num_data=old.num_data,
        batch_size=old.batch_size,
        row_sites=old.row_sites,
        kl_weight=old.kl_weight,
        kl_warmup=old.step.kl_growth or None,
        loop=old.loop,
        until=old.until,
        placement=old.placement,
        matmul_dtype=old.matmul_dtype,
    )
    twin = copy.copy(fit)
    vars(twin).pop("priors", None)  # cached; those of the smaller program have other shapes
    twin.model, twin.guide, twin.engine = model, guide, engine
    twin.criterion = _with_groups_of(fit.criterion, cut)
    twin.inspection = Inspection()
    twin._reducers, twin._shapes = [], {}
    twin._start, twin._removed = None, {}
    return twin


def _guide_for(guide: Any, model: Any) -> Any:
    options: dict[str, Any] = {
        "prefix": guide.prefix,
        "init_loc_fn": guide.init_loc_fn,
        "init_scale": guide._init_scale,
        "create_plates": guide.create_plates,
    }
    if isinstance(guide, AutoMeanField):
        options |= {"init_inclusion": guide.init_inclusion, "temperature": guide.temperature}
    return type(guide)(model, **options)


def _with_groups_of(criterion: Criterion | None, cut: CutToKept) -> Criterion | None:
    """Return a criterion whose groups are those of what is left."""
    if criterion is None or criterion.groups is None:
        return criterion
    groups = Groups(*cut_groups(criterion.groups.ids, cut.arrays))
    if not dataclasses.is_dataclass(criterion):
        raise TypeError(
            f"compact_fit: the criterion {type(criterion).__name__} has groups of the old size. Make it a "
            "dataclass with a field `groups`, of which copies with other groups can be made."
        )
    changed: Any = dataclasses.replace(criterion, groups=groups)
    return changed
