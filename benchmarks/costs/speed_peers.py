"""Other people's steps for `speed`, where their code can be found: PyTorch, jaxpruner, bmr4pml.

Nothing of them is in this repository. What keeps an older one from starting is replaced at run time.
"""

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import optax

from benchmarks.common import steps as steps_
from benchmarks.costs import bmr4pml as published

# Steps a mask of jaxpruner stays; none is made within a run.
NEVER = 10**6
TORCH = Path(__file__).with_name("speed_torch.py")


def found(makers: dict[str, Callable[[], dict[str, Any]]], missing: dict[str, str]) -> dict:
    """Return the sides of the peers there are; why the others are not goes into `missing`."""
    sides = {}
    for name, make in makers.items():
        try:
            sides |= make()
        except ImportError as error:
            missing[name] = f"not installed: {error}"
        # What breaks in other people's code is reported, and ends nothing.
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    return sides


def compiled_by_first_turn(run: Callable[[int], None], steps: int) -> steps_.Side:
    """Return a warm side whose first step compiled it."""
    side = steps_.Side(run, steps, driver="dispatch")
    begin = time.perf_counter()
    run(1)
    first = time.perf_counter() - begin
    side.compile_seconds = max(first - side.turn() / 1e3, 0.0)
    return side


# --- jaxpruner --------------------------------------------------------------------------------


def jaxpruner(
    where: str, network: Any, data: Any, batch: int, steps: int, mode: Any
) -> dict[str, Any]:
    """Return a step with masks by jaxpruner, and the update of its masks by magnitude.

    The step is the deterministic one with its masks applied to the new parameters, as its magnitude
    pruning does in every step. The update takes half of each matrix.
    """
    if where != "installed":
        sys.path.append(where)
    if not hasattr(jax, "tree_map"):  # an older name of the same function
        jax.tree_map = jax.tree.map  # ty: ignore
    import jaxpruner as peer

    pruner = peer.MagnitudePruning(
        sparsity_distribution_fn=lambda params: {
            name: 0.5 if x.ndim > 1 else None for name, x in params.items()
        },
        scheduler=peer.OneShotSchedule(target_step=NEVER),
    )
    optimizer = pruner.wrap_optax(optax.adabelief(steps_.RATE))
    step, carry = steps_.plain(network, optimizer, pruner.post_gradient_update)
    params = jax.tree.map(lambda x: x + 0, carry[0])
    update = jax.jit(lambda params: pruner.instant_sparsify(params)[1])

    def run(n: int) -> None:
        for _ in range(n):
            jax.block_until_ready(update(params))

    masked = steps_.looped(lambda c, i, data: step(c, i, data, batch), carry, steps, mode, data)
    return {
        "jaxpruner, magnitude step": steps_.warm(masked),
        "jaxpruner, mask update": compiled_by_first_turn(run, 3),
    }


# --- bmr4pml ----------------------------------------------------------------------------------


def bmr4pml(where: str, name: str, data: Any, batch: int, steps: int) -> dict[str, Any]:
    """Return its mean-field step with masks, and its step under the horseshoe."""
    # The steppers' own names of networks.
    nets = {"lenet5": "lenet5", "mlp400": "mlp"}
    if name not in nets:
        return {}
    made = published.steppers(where, nets[name], data, batch)
    return {
        side: compiled_by_first_turn(made[side], steps)
        for side in ("bmr4pml, BMR", "bmr4pml, Tiered")
    }


# --- PyTorch ----------------------------------------------------------------------------------


def pytorch(
    python: str, name: str, network: Any, shape: Any, rows: int, batch: int, steps: int
) -> dict[str, Any]:
    """Return a deterministic and a mean-field step by PyTorch, in a process that waits in between."""
    if name == "vit":  # not written there
        return {}
    given = {"rows": rows, "batch": batch, "steps": steps, "threads": len(os.sched_getaffinity(0))}
    words = [python, str(TORCH), name, "--shape", *map(str, shape)]
    words += [word for k, v in given.items() for word in (f"--{k}", str(v))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    peer = subprocess.Popen(words, stderr=subprocess.PIPE, **pipes)
    atexit.register(peer.kill)
    first = peer.stdout.readline()
    if not first:
        last = peer.stderr.read().strip().splitlines()[-1]
        kind = ImportError if "No module" in last else RuntimeError
        raise kind(last)
    described = json.loads(first)
    module = network[0] if isinstance(network, tuple) else network
    ours = sum(x.size for x in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)))
    assert described["parameters"] == ours, (described["parameters"], ours)

    def make(kind: str) -> steps_.Side:
        def run(n: int) -> None:
            peer.stdin.write(f"{kind} {n}\n")
            peer.stdin.flush()
            if not peer.stdout.readline():
                raise RuntimeError(peer.stderr.read())

        about = described["sides"][kind]
        return steps_.Side(
            run, steps, driver=about["driver"], compile_seconds=about["compile_seconds"]
        )

    return {f"PyTorch {described['version']}, {kind}": make(kind) for kind in described["sides"]}
