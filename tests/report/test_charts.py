import subprocess
import sys

import numpy as np
import pytest

from bmrjax.report.blocks import (
    Chart,
    Explorer,
    FactList,
    Measure,
    Notes,
    Page,
    PathStep,
    Section,
    Table,
)
from bmrjax.report.charts import (
    agreement_chart,
    curves_chart,
    intervals_chart,
    log_ticks,
    path_chart,
    reliability_chart,
)
from bmrjax.report.page_file import page_html, write_page
from bmrjax.report.vega_runtime import compiled_chart, vega_script

EVIL = "</script><img src=x onerror=alert(1)> & \"quotes\" 'single'"


def explorer(kept=(100, 10, 1)):
    steps = [PathStep(f"Point {i}", k, "taken back" if i == 1 else "") for i, k in enumerate(kept)]
    some = Measure("nll", "NLL", ["0.5", "", "0.25"], [0.5, None, 0.25])
    count = Measure("kept", "Weights kept", [str(k) for k in kept], list(kept))
    return Explorer("Weights kept", steps, [count, some], present=2)


CHARTS = {
    "path": path_chart(explorer(), explorer().measures[1]),
    "path to nothing": path_chart(explorer((100, 10, 0)), explorer().measures[1]),
    "agreement": agreement_chart(
        [{"predicted": -3.0, "measured": 2.0, "title": EVIL, "hollow": True}], x="x", y="y"
    ),
    "curves": curves_chart(
        [{"x": 0.0, "y": 1.0, "curve": "a"}, {"x": 1.0, "y": 2.0, "curve": "a"}], x="x", y="y"
    ),
    "reliability": reliability_chart(
        [{"expected": 0.5, "observed": 0.4, "count": 3}], x="x", y="y"
    ),
    "intervals": intervals_chart(
        [{"name": "age", "mean": 1.0, "low": 0.5, "high": 2.0, "kept": True}], x="x"
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_compiles_to_vega_and_fetches_nothing(name):
    compiled = compiled_chart(CHARTS[name])
    assert compiled["marks"]
    assert not any("url" in data for data in compiled["data"])
    signals = {signal["name"] for signal in compiled["signals"]}
    assert ("at" in signals) == name.startswith("path")


def test_the_runtime_is_small_and_has_what_a_page_uses():
    script = vega_script()
    assert len(script) < 650_000
    assert "window.vega" in script
    assert "</script" not in script


def test_under_a_limit_on_addresses_charts_are_compiled_or_refused_in_one_line(monkeypatch):
    resource = pytest.importorskip("resource")
    unlimited = compiled_chart(CHARTS["curves"])
    limits = {resource.RLIMIT_AS: (2**50, 2**50)}

    # The limit is set in the child, since JAX warns of a fork once it has begun.
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, {}); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )

    def run_limited(command, **options):
        script = limited.format(limits[resource.RLIMIT_AS])
        return run([sys.executable, "-I", "-c", script, *command], **options)

    run = subprocess.run
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: limits.get(kind, (resource.RLIM_INFINITY,) * 2)
    )
    monkeypatch.setattr(subprocess, "run", run_limited)
    assert compiled_chart(CHARTS["curves"]) == unlimited
    with pytest.raises(ValueError, match=r"\S"):
        compiled_chart({"mark": 3})
    limits[resource.RLIMIT_AS] = (2**33, 2**33)
    with pytest.raises(OSError, match=r"V8.*ulimit -v") as refused:
        compiled_chart(CHARTS["curves"])
    assert "\n" not in str(refused.value)


def test_what_fails_in_the_child_is_not_put_down_to_memory(monkeypatch):
    monkeypatch.setattr("bmrjax.report.vega_runtime._memory_is_limited", lambda: True)
    monkeypatch.setattr("bmrjax.report.vega_runtime._CHILD", "import no_such_module")
    with pytest.raises(OSError, match="No module named 'no_such_module'") as refused:
        compiled_chart({})
    assert "\n" not in str(refused.value)
    assert "V8" not in str(refused.value)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (7, 9), (0, 0), (0, 5), (12, 2_780), (3, 10**9)])
def test_ticks_are_few_and_on_the_axis(low, high):
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)
    assert np.all(np.diff(ticks) >= 0)


def page():
    blocks = [
        explorer(),
        Table(EVIL, [EVIL, "Part"], [[EVIL, 0.25]], frozenset({1}), summary="More"),
        Notes([(EVIL, EVIL, EVIL)]),
        Notes([], none="Nothing is wrong."),
        FactList([("Command", EVIL)], code=True),
        Chart(EVIL, EVIL, CHARTS["agreement"]),
    ]
    return Page(EVIL, EVIL, [(EVIL, EVIL, EVIL)], [Section("all", EVIL, EVIL, blocks)], "0.1")


def test_texts_are_escaped_wherever_they_stand():
    html = page_html(page())
    assert "<img" not in html
    assert "onerror=alert(1)> &" not in html
    # As many scripts are closed as are opened: points, charts, Vega and the page's own code.
    assert html.count("</script>") == 4
    assert html.count("25.0%") == 1
    assert "Nothing is wrong." in html
    assert "not measured" in html


def test_a_page_is_written_whole_and_names_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"ends in \.html"):
        write_page(page(), tmp_path / "page.pdf")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"vl-convert-python.*pip install 'bmrjax\[report\]'"):
        compiled_chart(CHARTS["curves"])
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"jinja2.*pip install 'bmrjax\[report\]'"):
        write_page(page(), tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
