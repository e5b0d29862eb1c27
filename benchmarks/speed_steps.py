"""The steps that `speed.py` times: each compiled, warmed up, and then taken in turn with the others."""

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
# A side whose turn takes so many times the first side's is timed in fewer turns.
SLOW = 8
FEW = 3


@dataclass
class Side:
    """Something that takes steps.

    Attributes:
        run: Takes n steps and waits for them.
        steps: Steps a turn; the same in all, for another number would be another program.
        loop: What compiled the step; None for a side that is not of this library.
        compile_seconds: Tracing, lowering and compiling, once the first turn has been taken.
        driver: How steps are repeated.
        plan: Bytes that the compiled program holds at once, on each device.
        parts: The engine, its state in a list, the masks and a batch, where there is an engine.
        milliseconds: A step, turn by turn.
    """

    run: Callable[[int], None]
    steps: int
    loop: Loop | None = None
    compile_seconds: float = 0.0
    driver: str = ""
    plan: dict[str, int] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()
    milliseconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Milliseconds a step."""
        return statistics.median(self.milliseconds)

    def turn(self) -> float:
        """Take the steps of a turn and return the milliseconds a step."""
        begin = time.perf_counter()
        self.run(self.steps)
        return 1e3 * (time.perf_counter() - begin) / self.steps


def warm(one: Side) -> Side:
    """Compile a side by a first turn, and write down what that took."""
    one.run(one.steps)
    if one.loop is not None:
        one.compile_seconds, one.driver = one.loop.compile_seconds, one.loop.mode
        (program,) = one.loop._compiled.values()
        one.plan = planned(program)
    return one


def planned(program: Any) -> dict[str, int]:
    """Return the bytes of a compiled program: arguments, temporary arrays, and all at once."""
    found = program.memory_analysis()
    if found is None:
        return {}
    args, temp = found.argument_size_in_bytes, found.temp_size_in_bytes
    beside = found.output_size_in_bytes - found.alias_size_in_bytes
    return {"arguments": args, "temporary": temp, "peak": args + temp + beside}


# --- what can be timed ------------------------------------------------------------------------


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


def deterministic(network: Any, data: Any, batch: int, steps: int, mode: Any) -> Side:
    """Return the side of a plain AdaBelief step."""
    step, carry = plain(network, optax.adabelief(RATE))
    return looped(lambda c, i, data: step(c, i, data, batch), carry, steps, mode, data)


def flops(network: Any, data: Any, batch: int) -> float:
    """Return the floating-point operations of a plain step, as XLA counts them before it optimises."""
    step, carry = plain(network, optax.adabelief(RATE))
    lowered = jax.jit(lambda c, i, data: step(c, i, data, batch)).lower(carry, 0, data)
    found: Any = lowered.cost_analysis()
    return float((found[0] if isinstance(found, list) else found)["flops"])


def inferred(
    kind: str, network: Any, data: Any, batch: int, steps: int, mode: Any, placement: Any = None
) -> Side:
    """Return the side of a step of the engine: MAP, an estimator, noise layers, or the horseshoe."""
    prior: Any = priors.RegularizedHorseshoePrior(0.01) if kind == "horseshoe" else priors.Flat()
    if kind == "noise":
        network, prior = nn.with_noise(network), None
    model = programs.classifier(network, prior)
    point = AutoDelta(model, init_loc_fn=init_to_network)
    estimator: Any = kind if kind in ("local", "moments") else "global"
    engine = Engine(
        model,
        point if kind == "map" else AutoMeanField(model),
        optimizer=optax.adabelief(RATE),
        loss=elbo(estimator),
        num_data=len(data[0]),
        batch_size=batch,
        loop=mode,
        **({} if placement is None else {"placement": placement}),
    )
    example = tuple(part[:batch] for part in data)
    box = [engine.init(jax.random.key(0), example)]
    keep, data = {}, data if placement is None else placement.everywhere(data)
    if kind in ("global", "local", "moments"):
        found = engine.site_posteriors(box[0], example).posterior
        keep = {name: jnp.ones(q.loc.shape, bool) for name, q in found.items()}

    def run(n: int) -> None:
        state, info = engine.epoch(box[0], keep, data, jax.random.key(1), num_steps=n)
        jax.block_until_ready((state.params, info.losses))
        box[0] = state

    return Side(run, steps, engine._epoch, parts=(engine, box, keep, example))


def seeds(
    program: Any, estimator: Any, data: Any, batch: int, steps: int, count: int
) -> dict[str, Side]:
    """Return the sides of one fit, and of as many in one program as there are seeds."""

    def make(count: int) -> Side:
        engine = Engine(
            program,
            AutoMeanField(program),
            optimizer=optax.adabelief(1e-2),
            loss=elbo(estimator),
            num_data=len(data[0]),
            batch_size=batch,
        )
        keys = list(jax.random.split(jax.random.key(0), count))
        example = tuple(part[:batch] for part in data)
        box = [engine.init(keys[0], example)] * count
        found = engine.site_posteriors(box[0], example).posterior
        keep = {name: jnp.ones(q.loc.shape, bool) for name, q in found.items()}

        def run_one(n: int) -> None:
            box[0], info = engine.epoch(box[0], keep, data, keys[0], num_steps=n)
            jax.block_until_ready(info.losses)

        def run_many(n: int) -> None:
            more: dict[str, Any] = {"num_steps": n, "rates": [1.0] * count}
            many = engine.epoch_of_many(box, [keep] * count, data, keys, **more)
            box[:] = [state for state, _ in many]
            jax.block_until_ready([info.losses for _, info in many])

        if count == 1:
            return Side(run_one, steps, engine._epoch)
        return Side(run_many, steps, engine._epoch_of_many)

    return {"one": warm(make(1)), "many": warm(make(count))}


def side(kind: str, network: Any, data: Any, batch: int, steps: int, mode: Any) -> Side:
    """Return the side of a kind of step."""
    if kind == "deterministic":
        return deterministic(network, data, batch, steps, mode)
    return inferred(kind, network, data, batch, steps, mode)


# --- limits -----------------------------------------------------------------------------------

# Floats that a step must move for each parameter of the network, at least: AdaBelief's two moments and
# the parameter are read and written, the gradient is written and read. A mean-field posterior has
# two parameters a weight.
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
    found["matmul"] = matmul(flops(network, data, batch), steps)
    return {name: warm(one) for name, one in found.items()}


# --- taking turns -----------------------------------------------------------------------------


def take_turns(sides: Mapping[str, Side], repeats: int, seconds: float) -> None:
    """Time all sides in turn, until there are so many turns or so many seconds are over.

    Every side gets `FEW` turns or more; a slow one gets no more.
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
            if taken * one.steps > SLOW * first:
                slow.add(name)


def ratio(one: Side, other: Side) -> list[float]:
    """Return median, least and largest ratio of two sides, turn by turn."""
    found = [a / b for a, b in zip(one.milliseconds, other.milliseconds, strict=False)]
    return [statistics.median(found), min(found), max(found)]


def reduction(parts: tuple[Any, ...], criterion: Any, repeats: int) -> dict[str, Any]:
    """Return what a reduction costs: posteriors, criterion, cap; an element and as a whole."""
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
