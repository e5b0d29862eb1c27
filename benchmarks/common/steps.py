"""Steps of all kinds, each compiled, warmed up, and then taken in turn with the others."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from numpyro.infer.autoguide import AutoDelta

import bmrjax as bmr
from bmrjax import nn, priors, programs
from bmrjax.criteria.reduce_once import jit_reduce
from bmrjax.infer import AutoMeanField, Engine, elbo, init_to_network
from bmrjax.infer.loop import Loop

RATE = 1e-3
KINDS = ("deterministic", "map", "global", "local", "moments", "noise", "horseshoe")
ESTIMATORS = ("global", "local", "moments")
# A side whose turn takes so many times the first side's is timed in fewer turns.
SLOW = 8
FEW = 3


@dataclass
class Side:
    """Something that takes steps.

    Attributes:
        run: Takes n steps and waits for them.
        steps: Steps of a turn; the same in all, for another number would be another program.
        loop: What compiled the step; None for a side that is not of this library.
        compile_seconds: Tracing, lowering and compiling, once the first turn has been taken.
        driver: How steps are repeated.
        plan: Bytes that the compiled program holds at once, on each device.
        parts: The engine, its state in a list, the masks and a batch, where there is an engine.
        milliseconds: Of a step, turn by turn; `processor` the same in time of the processor.
    """

    run: Callable[[int], None]
    steps: int
    loop: Loop | None = None
    compile_seconds: float = 0.0
    driver: str = ""
    plan: dict[str, int] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()
    milliseconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Milliseconds of a step."""
        return statistics.median(self.milliseconds)

    def turn(self) -> float:
        """Take the steps of a turn and return the milliseconds of a step."""
        begin, work = time.perf_counter(), time.process_time()
        self.run(self.steps)
        self.processor.append(1e3 * (time.process_time() - work) / self.steps)
        return 1e3 * (time.perf_counter() - begin) / self.steps


def warm(side: Side) -> Side:
    """Compile a side by a first turn, and write down what that took."""
    side.run(side.steps)
    if side.loop is not None:
        side.compile_seconds, side.driver = side.loop.compile_seconds, side.loop.mode
        (program,) = side.loop._compiled.values()
        side.plan = planned(program)
    return side


def planned(program: Any) -> dict[str, int]:
    """Return the bytes of a compiled program: arguments, temporary arrays, and all at once."""
    found = program.memory_analysis()
    if found is None:
        return {}
    args, temp = found.argument_size_in_bytes, found.temp_size_in_bytes
    beside = found.output_size_in_bytes - found.alias_size_in_bytes
    return {"arguments": args, "temporary": temp, "peak": args + temp + beside}


# --- what can be timed ----------------------------------------------------------------------------


def plain(
    network: Any, optimizer: optax.GradientTransformation, after: Callable | None = None
) -> tuple[Callable, Any]:
    """Return a step on the cross entropy, as `Loop` takes it, and its first carry.

    Args:
        network: An Equinox network, or a pair of it and its running statistics.
        optimizer: An optax optimiser.
        after: Takes the new parameters and the optimiser's state, and returns the parameters; None for none.
    """
    module, statistics_ = network if isinstance(network, tuple) else (network, None)
    trained, static = eqx.partition(module, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(trained)
    # jaxpruner takes a dict.
    params = {f"{i:03d}": leaf for i, leaf in enumerate(leaves)}

    def loss(params: Any, state: Any, x: Any, y: Any) -> Any:
        whole = eqx.combine(jax.tree.unflatten(structure, list(params.values())), static)
        if state is None:
            logits = jax.vmap(whole)(x)
        else:
            many = jax.vmap(whole, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            logits, state = many(x, state)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), state

    def step(carry: Any, i: Any, data: Any, batch: int) -> Any:
        params, opt_state, state = carry
        rows = (i * batch) % (len(data[0]) - batch + 1)
        x, y = (jax.lax.dynamic_slice_in_dim(a, rows, batch) for a in data)
        grads, state = jax.grad(loss, has_aux=True)(params, state, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return params if after is None else after(params, opt_state), opt_state, state

    carry = jax.tree.map(lambda x: jnp.array(x, copy=True), (params, optimizer.init(params)))
    return step, (*carry, statistics_)


def looped(step: Callable, carry: Any, steps: int, mode: Any, *args: Any) -> Side:
    """Return the side that repeats a step of `Loop`."""
    # What is donated is this side's own.
    loop, box = Loop(step, mode), [jax.tree.map(lambda x: jnp.array(x, copy=True), carry)]

    def run(n: int) -> None:
        box[0] = jax.block_until_ready(loop(box[0], n, *args))

    return Side(run, steps, loop)


def flops(network: Any, data: Any, batch: int) -> float:
    """Return the floating-point operations of a plain step, as XLA counts them before it optimises.

    Not a number where it does not count them, as for CUDA.
    """
    step, carry = plain(network, optax.adabelief(RATE))
    lowered = jax.jit(lambda c, i, data: step(c, i, data, batch)).lower(carry, 0, data)
    found: Any = lowered.cost_analysis()
    found = found[0] if isinstance(found, list) else found
    return float(found["flops"]) if found else float("nan")


def engine_side(
    model: Any,
    data: Any,
    batch: int,
    steps: int,
    *,
    estimator: Any = "global",
    guide: Any = None,
    masks: bool = False,
    rate: float = RATE,
    placement: Any = None,
    **more: Any,
) -> Side:
    """Return the side of a step of bmrjax's engine.

    Args:
        model: The program.
        data: Training data; a batch of the first rows starts it.
        batch: Rows of a step.
        steps: Steps of a turn.
        estimator: Of the expected log likelihood.
        guide: By default `AutoMeanField`.
        masks: Whether the step has masks; they keep everything.
        rate: Of AdaBelief.
        placement: Devices; by default one.
        more: Options of `Engine`.
    """
    more |= {} if placement is None else {"placement": placement}
    engine = Engine(
        model,
        AutoMeanField(model) if guide is None else guide,
        optimizer=optax.adabelief(rate),
        loss=elbo(estimator),
        num_data=len(data[0]),
        batch_size=batch,
        **more,
    )
    example = tuple(part[:batch] for part in data)
    box, keep = [engine.init(jax.random.key(0), example)], {}
    if masks:
        found = engine.site_posteriors(box[0], example).posterior
        keep = {name: jnp.ones(q.loc.shape, bool) for name, q in found.items()}
    data = data if placement is None else placement.everywhere(data)

    def run(n: int) -> None:
        state, info = engine.epoch(box[0], keep, data, jax.random.key(1), num_steps=n)
        jax.block_until_ready((state.params, info.losses))
        box[0] = state

    return Side(run, steps, engine._epoch, parts=(engine, box, keep, example))


def side(
    kind: str, network: Any, data: Any, batch: int, steps: int, mode: Any, placement: Any = None
) -> Side:
    """Return the side of one of `KINDS` of steps.

    Besides, "horseshoe, full" has a scale for each weight, and "unmasked" is "global" without masks.
    """
    if kind == "deterministic":
        step, carry = plain(network, optax.adabelief(RATE))
        return looped(lambda c, i, data: step(c, i, data, batch), carry, steps, mode, data)
    prior: Any = priors.Flat()
    if kind.startswith("horseshoe"):
        prior = priors.RegularizedHorseshoePrior(0.01, local=kind.endswith("full"))
    if kind == "noise":
        network, prior = nn.with_noise(network), None
    model = programs.classifier(network, prior)
    guide = AutoDelta(model, init_loc_fn=init_to_network) if kind == "map" else None
    kinds = {"estimator": kind if kind in ESTIMATORS else "global", "masks": kind in ESTIMATORS}
    return engine_side(
        model, data, batch, steps, guide=guide, loop=mode, placement=placement, **kinds
    )


def seeds(
    program: Any, estimator: Any, data: Any, batch: int, steps: int, count: int
) -> dict[str, Side]:
    """Return the sides of one fit, and of as many in one program as there are seeds."""
    settings: dict[str, Any] = {"estimator": estimator, "masks": True, "rate": 1e-2}
    keys = list(jax.random.split(jax.random.key(0), count))
    one, many = (engine_side(program, data, batch, steps, **settings) for _ in range(2))
    engine, (state,), keep, _ = many.parts
    box = [state] * count

    def run(n: int) -> None:
        more: dict[str, Any] = {"num_steps": n, "rates": [1.0] * count}
        found = engine.epoch_of_many(box, [keep] * count, data, keys, **more)
        box[:] = [state for state, _ in found]
        jax.block_until_ready([info.losses for _, info in found])

    return {"one": warm(one), "many": warm(Side(run, steps, engine._epoch_of_many))}


# --- limits ---------------------------------------------------------------------------------------

# Floats that a step must move for each parameter of the network, at least: AdaBelief's two moments and
# the parameter are read and written, the gradient is written and read. A mean-field posterior has
# two parameters for each weight.
FLOATS = {"deterministic": 8, "global": 16}


def stream(floats: int, steps: int) -> Side:
    """Return the side that reads half as many floats and writes them, and does nothing else."""
    carry = jnp.ones(max(floats // 2, 1), jnp.float32)
    # Enough of them that what a turn takes to start does not count.
    steps = max(steps, 10**8 // floats)
    return looped(lambda c, i: 0.999 * c + 0.001, carry, steps, "fused")


def matmul(count: float, steps: int) -> Side:
    """Return the side of a square matrix product of so many floating-point operations."""
    size = max(round((count / 2) ** (1 / 3)), 1)
    weight = jnp.full((size, size), 1 / size, jnp.float32)
    return looped(lambda c, i, w: c @ w, jnp.ones_like(weight), steps, "dispatch", weight)


def limits(network: Any, weights: int, data: Any, batch: int, steps: int) -> dict[str, Side]:
    """Return what no step of a network of so many weights can beat, warm."""
    found = {f"stream, {kind}": stream(n * weights, steps) for kind, n in FLOATS.items()}
    count = flops(network, data, batch)
    if not math.isnan(count):
        found["matmul"] = matmul(count, steps)
    return {name: warm(one) for name, one in found.items()}


# --- taking turns ---------------------------------------------------------------------------------


def take_turns(sides: Mapping[str, Side], repeats: int, seconds: float = float("inf")) -> None:
    """Time all sides in turn, until there are so many turns or so many seconds are over.

    Every side gets `FEW` turns or more; where seconds are limited, a slow one gets no more.
    """
    begin, slow = time.perf_counter(), set()
    for turn in range(repeats):
        if turn >= FEW and time.perf_counter() - begin > seconds:
            break
        first = None
        for name, one in sides.items():
            if turn >= FEW and name in slow:
                continue
            taken = one.turn()
            one.milliseconds.append(taken)
            first = taken * one.steps if first is None else first
            if seconds < float("inf") and taken * one.steps > SLOW * first:
                slow.add(name)


def ratio(one: Side, other: Side) -> list[float]:
    """Return median, least and largest ratio of two sides, turn by turn."""
    return spread(one.milliseconds, other.milliseconds)


def spread(some: list[float], others: list[float]) -> list[float]:
    """Return median, least and largest ratio, pair by pair."""
    found = [a / b for a, b in zip(some, others, strict=False)]
    return [statistics.median(found), min(found), max(found)]


def reduction(parts: tuple[Any, ...], criterion: Any, repeats: int) -> dict[str, Any]:
    """Return what a reduction costs: posteriors, criterion, cap; per element and as a whole."""
    engine, box, keep, batch = parts
    found = engine.site_posteriors(box[0], batch)
    reduce = jit_reduce(criterion, bmr.criteria.smallest_magnitude_first)
    memory, times = criterion.init(found.posterior), []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        found = engine.site_posteriors(box[0], batch)
        args = found, keep, memory, jnp.float32(0.5)
        jax.block_until_ready(reduce(*args).keep)
        times.append(1e3 * (time.perf_counter() - begin))
    elements = sum(mask.size for mask in keep.values())
    middle = statistics.median(times[1:])
    return {
        "first_ms": times[0],
        "milliseconds": times[1:],
        "median_ms": middle,
        "elements": elements,
        "nanoseconds_an_element": 1e6 * middle / elements,
    }
