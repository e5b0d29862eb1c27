"""What is shown of a reduction while it goes on."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.run import progress_line
from bmrjax.trained import path_progress
from bmrjax.trained.path_progress import PathProgress

NETWORK = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
X = jax.random.normal(jax.random.key(1), (400, 3))
Y = jax.vmap(NETWORK)(X) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))


def reduce(**options):
    return bmr.reduce_network(NETWORK, (X, Y), keep=0.5, **options)


def lines(text):
    return [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]


@pytest.mark.parametrize(
    ("units", "pilot", "total"), [(False, 3, "32 weights"), (True, 2, "41 parameters")]
)
def test_a_reduction_shows_its_rounds_and_leaves_one_line(capsys, monkeypatch, units, pilot, total):
    expected = reduce(units=units)
    assert capsys.readouterr().err == ""  # which is no terminal
    monkeypatch.setattr(progress_line, "is_watched", lambda: True)
    reduce(units=units, progress=False)
    assert capsys.readouterr().err == ""
    found = reduce(units=units)
    shown = lines(capsys.readouterr().err)
    doing = [re.match(r"[^\d]*", line)[0].strip() for line in shown[:-1]]
    steps = ["looking for layers", "calibrating", "first pass,", "round"]
    steps += ["fitting what stays once more", *["cutting out what was removed"] * units]
    assert list(dict.fromkeys(doing)) == steps
    assert any(line.startswith(f"first pass, 2/{pilot} ") for line in shown)
    second = rf"round 2/5 .*about \d+ s to 50%, {found.path[1].kept:.1%} kept"
    assert any(re.match(second, line) for line in shown)
    point = found.path[found.chosen]
    assert re.fullmatch(
        rf"{len(found.path) - 1} rounds in \d+ s; {point.kept:.1%} of {total} kept, "
        + re.escape(f"loss {point.measured:+.3g} ± {point.standard_error:.2g} nats per row"),
        shown[-1],
    )
    # Looking changes nothing.
    assert found.path == expected.path


def test_one_that_fails_says_where(capsys, monkeypatch):
    monkeypatch.setattr(progress_line, "is_watched", lambda: True)
    with pytest.raises(ValueError, match="are not finite"):
        bmr.reduce_network(
            eqx.tree_at(lambda n: n.layers[0].bias, NETWORK, jnp.full(8, np.nan)), (X, Y)
        )
    assert lines(capsys.readouterr().err)[-1] == "stopped while looking for layers"

    def refuse(network, masks):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        reduce(fine_tune=refuse)
    assert lines(capsys.readouterr().err)[-1] == "stopped at round 1/5"


class Bar:
    """What a bar showed."""

    def set_description_str(self, text, refresh):
        self.text = text

    def set_postfix_str(self, text, refresh):
        self.rest = text

    def refresh(self):
        pass


def test_the_time_to_the_last_round_is_estimated(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(path_progress.time, "perf_counter", lambda: now[0])
    bar = Bar()
    shown = PathProgress(bar)
    shown.begin("round", 10, 0.2)
    assert (bar.n, bar.text, bar.rest) == (0.0, "round 1/10", "")
    for seconds, kept in ((60.0, 0.85), (70.0, 0.72), (84.0, 0.61)):  # the first one compiled
        now[0] = seconds
        shown.round(kept)
    assert (bar.n, bar.text) == (0.3, "round 4/10")
    assert bar.rest == "about 1 min 24 s to 20%, 61.0% kept"
    shown.doing("fitting")
    assert (bar.n, bar.text, bar.rest) == (1.0, "fitting", "")
