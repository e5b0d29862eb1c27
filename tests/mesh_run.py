"""Runs over a mesh, for `test_mesh`: a process of its own, because JAX counts its devices once.

Prints a JSON document a case.
"""

import json
import os
import re
import sys
from dataclasses import replace
from functools import partial

NUM_DEVICES = int(os.environ.get("MESH_DEVICES", "8"))
_FLAGS = os.environ.get("XLA_FLAGS", "")
if __name__ == "__main__":  # not when pytest looks for doctests here
    os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count={NUM_DEVICES}"
    # A virtual device that waits for the others holds a thread of XLA's pool, at times more than one.
    os.environ.setdefault("NPROC", str(8 * NUM_DEVICES))

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import bmrjax as bmr  # noqa: E402
from bmrjax.criteria.reduce_once import reduce_once  # noqa: E402

BATCH = 48
COLLECTIVE = re.compile(
    r"= (\(.*?\)|\S+) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)


def mesh_of(axes):
    """Return a mesh, or None for no axes."""
    return jax.make_mesh(tuple(axes.values()), tuple(axes)) if axes else None


def data():
    """Return inputs and classes that the signs of two inputs give."""
    x = np.random.default_rng(0).normal(size=(4800, 24)).astype(np.float32)
    return x, 2 * (x[:, 0] > 0) + (x[:, 1] > 0)


def program():
    """Return a classifier with layers of unequal widths."""
    network = bmr.zoo.MLP(24, [32], 4, key=jax.random.key(0))
    return bmr.programs.classifier(network, bmr.priors.Flat())


def run(axes, **settings):
    """Fit over a mesh."""
    settings = {"num_epochs": 5, "batch_size": BATCH, "steps_per_epoch": 100, **settings}
    source = settings.pop("source", None) or data()
    return bmr.sparsify(
        program(),
        source,
        key=jax.random.key(1),
        options=bmr.FitOptions(mesh=mesh_of(axes), kl_warmup=0),
        schedule=settings.pop("schedule", None) or bmr.schedules.Every(wait=2),
        optimizer=optax.adabelief(0.05),
        progress=False,
        **settings,
    )


def facts_of(result):
    """Return what is compared."""
    return {
        "params": {k: np.asarray(v).ravel().tolist() for k, v in result.params.items()},
        "keep": {k: np.asarray(v).ravel().tolist() for k, v in result.keep.items()},
        "vfe": [row["vfe"] for row in result.history],
        "compilations": result.num_compilations,
        "metrics": result.metrics,
        "points": len(result.path),
    }


def same(axes, folder=None):
    """A verified run, with held-out metrics, and checkpoints where there is a folder."""
    x, y = data()
    schedule = bmr.schedules.Verified(wait=2, refit=1, cooldown=1)
    held_out = bmr.HeldOut((x[:100], y[:100]), final_samples=4)
    checkpoints = None if folder is None else bmr.Checkpoints(folder, interval=0.0)
    return facts_of(run(axes, schedule=schedule, held_out=held_out, checkpoints=checkpoints))


def layout(axes):
    """How the state is parted, and how the step's devices talk."""
    fit = bmr.Fit(
        program(),
        data(),
        batch_size=BATCH,
        options=bmr.FitOptions(mesh=mesh_of(axes), kl_warmup=0, loop="dispatch"),
    )
    state, _ = fit.epoch(fit.init(jax.random.key(0)), jax.random.key(1), num_steps=1)
    (compiled,) = fit.engine._epoch._compiled.values()
    text = compiled.as_text()
    arrays = jax.tree_util.tree_leaves_with_path((state.svi, state.keep))
    return {
        "arrays": [
            [
                jax.tree_util.keystr(path),
                list(x.shape),
                x.nbytes,
                x.addressable_shards[0].data.nbytes,
            ]
            for path, x in arrays
        ],
        "collectives": [
            [
                kind,
                [
                    [int(n) for n in dims.split(",") if n]
                    for dims in re.findall(r"\w+\[([\d,]*)\]", shapes)
                ],
            ]
            for shapes, kind in COLLECTIVE.findall(text)
        ],
    }


def reduction(axes):
    """How what is reduced is parted, what a round sends between devices, and its masks."""
    fit = bmr.Fit(
        program(),
        data(),
        batch_size=BATCH,
        options=bmr.FitOptions(mesh=mesh_of(axes), kl_warmup=0),
    )
    state = fit.init(jax.random.key(0))
    found = fit.site_posteriors(state)
    once = partial(reduce_once, fit.criterion, fit.order)
    args = found.only(list(state.keep)), state.keep, state.memory, np.float32(0.02)
    text = jax.jit(once).lower(*args).compile().as_text()
    arrays = jax.tree_util.tree_leaves_with_path((found.posterior, found.prior))
    # Fewer than there are biases, which all start at zero.
    state, _ = fit._reducers[0].reduce(state, 0.02, beyond=True)
    return {
        "arrays": [
            [jax.tree_util.keystr(path), x.size, x.addressable_shards[0].data.size]
            for path, x in arrays
        ],
        "collectives": [[kind, shapes] for shapes, kind in COLLECTIVE.findall(text)],
        "keep": {name: np.asarray(mask).ravel().tolist() for name, mask in state.keep.items()},
    }


SHORT = {"num_epochs": 4, "steps_per_epoch": 50}


def from_iterator(axes, **settings):
    """A short run over batches from an iterator."""
    x, y = data()

    def source(epoch):
        rng = np.random.default_rng(epoch)
        while True:
            rows = rng.integers(0, len(x), BATCH)
            yield x[rows], y[rows]

    batches = bmr.Batches(source, num_data=len(x))
    return facts_of(run(axes, source=batches, **SHORT | settings))


def moved(begin, end, folder):
    """The same, begun on some devices and gone on with over others."""
    checkpoints = bmr.Checkpoints(folder, interval=0.0)
    from_iterator(begin, num_epochs=2, checkpoints=checkpoints)
    return from_iterator(end, checkpoints=replace(checkpoints, resume=True))


def main() -> None:
    """Run the cases of the command line: JSON of [function, axes, more]."""
    if "MESH_PROCESS" in os.environ:
        jax.distributed.initialize(
            os.environ["MESH_ADDRESS"], num_processes=2, process_id=int(os.environ["MESH_PROCESS"])
        )
    for name, *args in json.loads(sys.argv[1]):
        print("CASE " + json.dumps(globals()[name](*args)), flush=True)


if __name__ == "__main__":
    main()
