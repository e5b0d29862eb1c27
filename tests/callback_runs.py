"""A small run, alone and as an ensemble, for tests of callbacks."""

import json

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax

import bmrjax as bmr
from bmrjax.callbacks import (
    EpochEnd,
)

SIZE, EPOCHS = 12, 15
# A prior so much for excluding that some rounds remove too much, and are taken back.
CRITERION = bmr.criteria.SpikeAndSlab(beta=1e6)
SCHEDULE = bmr.schedules.Verified(
    wait=2, refit=2, min_fraction=0.02, cooldown=3, passes=("criterion",)
)


def make_data():
    x = jax.random.normal(jax.random.key(0), (64, SIZE))
    weights = jnp.linspace(-1.0, 1.0, SIZE) ** 3
    return x, x @ weights + 0.5 * jax.random.normal(jax.random.key(1), (64,))


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


SETTINGS = {
    "num_epochs": EPOCHS,
    "batch_size": 16,
    "steps_per_epoch": 10,
    "optimizer": optax.adabelief(5e-2),
    "schedule": SCHEDULE,
    "criterion": CRITERION,
    "guide": bmr.infer.AutoMeanField(program),
    "progress": False,
}


def run(*callbacks, **options):
    data = make_data()
    held_out = bmr.HeldOut(data, every=3, samples=2, final_samples=4)
    settings = {**SETTINGS, "key": jax.random.key(2), "held_out": held_out, **options}
    return bmr.sparsify(program, data, callbacks=callbacks, **settings)


def ensemble(*callbacks, **options):
    keys = jax.random.split(jax.random.key(2), 2)
    settings = {**SETTINGS, "guide": bmr.infer.AutoMeanField, "keys": keys, **options}
    return bmr.ensemble(program, make_data(), callbacks=callbacks, **settings)


class Recorder(list):
    """A callback that keeps the records, and may raise at one of them."""

    def __init__(self, raise_at=None, error=None):
        super().__init__()
        self.raise_at, self.error = raise_at, error

    def __call__(self, record):
        self.append(record)
        if self.raise_at is not None and self.raise_at(record):
            raise OSError("disk full") if self.error is None else self.error

    def of(self, kind):
        return [record for record in self if isinstance(record, kind)]


def end_of(epoch):
    return lambda record: isinstance(record, EpochEnd) and record.epoch == epoch


def without_times(records):
    return [
        {k: v for k, v in record.items() if not k.endswith("seconds")}
        for record in records
        if record["record"] not in ("RunStart", "RunEnd")
    ]


def lines_of(path):
    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
