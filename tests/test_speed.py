import sys
from argparse import Namespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax import criteria, zoo

# Long for what they add; `make all-checks` runs them.
pytestmark = pytest.mark.slow

REASON = "the benchmarks are not part of this distribution"
speed = pytest.importorskip("benchmarks.costs.speed", reason=REASON)
peers, report, steps = speed.peers, speed.report, speed.steps


def data(rows=16):
    return jax.random.normal(jax.random.key(1), (rows, 6)), jnp.zeros(rows, jnp.int32)


def network():
    return zoo.MLP(6, (5,), 3, key=jax.random.key(0))


@pytest.fixture(scope="module")
def stepped():
    """Return a warm side of each of two kinds, with what no step beats."""
    sides = {
        kind: steps.warm(steps.side(kind, network(), data(), 8, 2, "dispatch"))
        for kind in ("deterministic", "global")
    }
    sides |= steps.limits(network(), 53, data(), 8, 2)
    steps.take_turns(sides, 2, 60.0)
    return sides


@pytest.mark.slow
def test_a_side_is_compiled_once_and_goes_on_from_where_it_is(stepped):
    engine, (state,), keep, _ = stepped["global"].parts
    assert engine.num_compilations == 1
    # A turn to warm up, and two that were timed, of two steps each.
    assert int(state.num_steps) == 6
    assert speed.weights_of(stepped["global"]) == 6 * 5 + 5 + 5 * 3 + 3
    assert all(mask.all() for mask in keep.values())
    plan = stepped["global"].plan
    # A mean-field posterior and two moments of each of its parameters are among the arguments.
    assert plan["arguments"] > 4 * 2 * 3 * 53
    assert plan["peak"] >= plan["arguments"] + plan["temporary"]


def test_operations_are_those_of_the_matrix_products():
    wide = zoo.MLP(300, (200,), 10, key=jax.random.key(0))
    x = jnp.zeros((64, 300)), jnp.zeros(64, jnp.int32)
    found = steps.flops(wide, x, 64)
    # Forwards, and backwards to the weights; to the input in the second layer only.
    products = 2 * 64 * (2 * 300 * 200 + 3 * 200 * 10)
    # The optimiser and the activations take the rest.
    assert products < found < 1.2 * products
    side = steps.matmul(2 * 40.0**3, 1)
    side.run(1)
    assert side.loop._compiled.popitem()[1].memory_analysis().output_size_in_bytes == 4 * 40**2


def test_a_row_has_ratios_within_turns(stepped):
    found = speed.summary(stepped)
    ours, plain = (found[kind]["milliseconds"] for kind in ("global", "deterministic"))
    assert len(ours) == len(plain) == 2
    ratios = np.divide(ours, plain)
    ratio = found["global"]["ratio_to_deterministic"]
    np.testing.assert_allclose(ratio, [np.median(ratios), ratios.min(), ratios.max()])
    assert found["deterministic"]["ratio_to_deterministic"] == [1.0, 1.0, 1.0]


def test_a_reduction_is_told_an_element(stepped):
    found = steps.reduction(stepped["global"].parts, criteria.SpikeAndSlab(), 2)
    assert (found["elements"], len(found["milliseconds"])) == (53, 2)
    np.testing.assert_allclose(found["nanoseconds_an_element"], 1e6 * found["median_ms"] / 53)


def test_slow_sides_take_fewer_turns(monkeypatch):
    sides = {name: steps.Side(lambda n: None, 1) for name in ("first", "slow", "like it")}
    taken = {"first": 1.0, "slow": 9.0, "like it": 7.0}
    names = {id(one): name for name, one in sides.items()}
    monkeypatch.setattr(steps.Side, "turn", lambda one: taken[names[id(one)]])
    steps.take_turns(sides, 5, 60.0)
    counts = {name: len(one.milliseconds) for name, one in sides.items()}
    assert counts == {"first": 5, "slow": 3, "like it": 5}
    assert steps.ratio(sides["slow"], sides["first"]) == [9.0, 9.0, 9.0]


def test_peers_that_are_missing_or_break_are_told():
    def absent():
        raise ImportError("No module named 'peer'")

    def broken():
        raise AttributeError("jax.tree_map is gone")

    missing = {}
    makers = {"absent": absent, "broken": broken, "there": lambda: {"its step": 1}}
    assert peers.found(makers, missing) == {"its step": 1}
    assert missing == {
        "absent": "not installed: No module named 'peer'",
        "broken": "AttributeError: jax.tree_map is gone",
    }


def test_a_python_without_torch_is_told(tmp_path, monkeypatch):
    script = tmp_path / "peer.py"
    script.write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(peers, "TORCH", script)
    with pytest.raises(ImportError, match="a_module_that_is_not_there"):
        peers.pytorch(sys.executable, "mlp", network(), (6,), 16, 8, 1)


def test_quick_measures_some_of_everything():
    args = Namespace(networks=["lenet5", "vit"], only=list(speed.WHAT))
    args.quick = False
    full = speed.jobs(args)
    args.quick = True
    quick = speed.jobs(args)
    assert {job["what"] for job in quick} == {job["what"] for job in full}
    assert len(quick) < len(full)
    assert all(job in full for job in quick if job["what"] != "scaling")
    flags = speed.settings_of({"what": "devices", "value": 4})["XLA_FLAGS"]
    assert flags.endswith("device_count=4")


def step(median, ratio, beside="deterministic"):
    return {
        "milliseconds": [median], "median_ms": median, f"ratio_to_{beside}": [ratio, ratio, ratio],
        "compile_seconds": 2.0, "driver": "fused", "plan_bytes": {"peak": 3 * 2**20},
    }  # fmt: skip


def test_tables_say_which_targets_are_met(tmp_path):
    rows = speed.Rows(tmp_path)
    where = {
        "versions": {"jax": "0.0"}, "device": "cpu", "cpu": "a CPU", "cores": 2, "python": "3",
        "load_average_before": 1.5, "batch": 128, "parameters": 1000,
    }  # fmt: skip
    limits = {"stream, deterministic": 0.5, "stream, global": 1.0, "matmul": 0.75}
    timed = {"deterministic": step(2.0, 1.0), "global": step(5.0, 2.5), "local": step(4.0, 2.0)}
    timed |= {name: step(ms, ms / 2) for name, ms in limits.items()}
    grown = {"hidden": [100], "axis": "width", "value": 100, "steps": timed}
    reduced = {"elements": 1000, "median_ms": 25.0, "milliseconds": [20.0, 30.0]}
    network = {
        "name": "mlp", "data_bytes": 2**20, "flops_deterministic": 75e6, "failed": {},
        "not_timed": {"jaxpruner": "not installed: No module"}, "steps": timed,
        "process_peak_mib": 7.0, "device_peak_bytes": None,
        "reduction": {"shrinkage": reduced | {"nanoseconds_an_element": 25e3}},
    }  # fmt: skip
    divided = {"one": step(8.0, 1.0, "one"), "data": step(12.0, 1.5, "one")}
    divided["model"] = step(9.0, 1.1, "one")
    rows.add({"what": "network", **network, **where})
    rows.add({"what": "scaling", **grown, **where})
    devices = {"value": 2, "virtual": True, "data_bytes": 2**20, "steps": divided}
    rows.add({"what": "devices", **devices, **where})
    rows.add({"what": "devices", "value": 64, "too_few": 2, **where})
    seeds = {"data": "boston", "estimator": "global", "seeds": 10, "steps_per_epoch": 100}
    seeds["steps"] = {"one": step(0.5, 1.0, "one"), "many": step(1.0, 2.0, "one")}
    seeds["runs"] = {"one": {"seconds": 8.0}, "many": {"seconds": 20.0}}
    rows.add({"what": "seeds", **seeds, **where})
    report.write(rows)
    text = (tmp_path / "table.md").read_text()
    asked = (tmp_path / "targets" / "table.md").read_text()
    assert "MLP 100-100, 1,000 weights, batch 128: `global` / deterministic | 2.0 | 2.50 (" in asked
    met = [line.split(" | ")[-1].strip("| ") for line in asked.splitlines()[2:]]
    assert met == ["no", "yes", "yes"]
    # The larger limit is the stream: 1 of 5 ms; of the deterministic step it is the product.
    assert "| 5 | 1 | 0.75 | 100 | stream | 20% |" in text
    assert "| 2 | 0.5 | 0.75 | 100 | matmul | 38% |" in text
    assert "| 2 virtual | batch | 12 | 1.50 (1.50 to 1.50) | 2.0 | 2.0 |" in text
    assert "| 0.500 | 1.000 | 2.00 (2.00 to 2.00) | 2.0 / 2.0 | 20.0 / 8.0 | 2.5 |" in text
    assert "| 64 | only 2 there |" in text
    assert "not installed: No module" in text
    assert (tmp_path / "speed.png").stat().st_size > 10_000
