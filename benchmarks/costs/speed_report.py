"""Tables and plot of `speed`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.common.rows import Rows, table
from benchmarks.common.steps import KINDS, spread

LABELS = {
    "lenet5": "LeNet-5",
    "mlp": "MLP 100-100",
    "mlp400": "MLP 5 x 400",
    "vit": "ViT",
    "resnet18": "ResNet-18",
}
GROWTH = ("width", "depth", "batch")
# Where the MLP of 5 x 400 is on the way.
ON_THE_WAY = {"depth": 5, "batch": 128}
SWEPT = ("global", "local")
# What a step is to cost at most, times the deterministic one.
GLOBAL = {"lenet5": 1.1, "vit": 1.1, "mlp": 2.0, "mlp400": 2.0}
TARGETS = {(name, "global"): most for name, most in GLOBAL.items()}
TARGETS |= {(name, "local"): 2.2 for name in GLOBAL}
TARGET_SEEDS = 3.0
Row = dict[str, Any]


def say(line: str) -> None:
    """Print for whoever waits."""
    print(line, file=sys.stderr, flush=True)


def with_range(found: list[float], digits: int = 2) -> str:
    """Return a median with its range."""
    middle, low, high = (f"{x:.{digits}f}" for x in found)
    return f"{middle} ({low} to {high})"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _step(kind: str, step: Row) -> str:
    shown = _ms(step["median_ms"])
    plain = kind == "deterministic"
    return shown if plain else f"{shown}: {with_range(step['ratio_to_deterministic'])}"


def _name(row: Row) -> str:
    return f"{LABELS[row['name']]}, {row['parameters']:,} weights, batch {row['batch']}"


def _mib(row: Row, step: Row) -> str:
    return f"{(step['plan_bytes']['peak'] - row['data_bytes']) / 2**20:.1f}"


def grown(rows: Rows, axis: str) -> list[Row]:
    """Return the rows along an axis, the smallest first."""
    found = rows.where(what="scaling", axis=axis)
    if axis in ON_THE_WAY:
        there = rows.where(what="network", name="mlp400", batch=128)
        found += [{**row, "axis": axis, "value": ON_THE_WAY[axis]} for row in there]
    return sorted(found, key=lambda row: row["value"])


def roof(row: Row, kind: str) -> tuple[float, str]:
    """Return the milliseconds that nothing beats, and which of the two limits that is.

    The stream is that of the kind's parameters; the matrix product has the deterministic step's operations.
    """
    limits = {"stream": f"stream, {kind}", "matmul": "matmul"}
    return max((row["steps"][name]["median_ms"], label) for label, name in limits.items())


# --- tables: each function returns the lines of a row -----------------------------------------------


def _each_kind(row: Row, figure: Callable[[str, Row], str]) -> list[list[str]]:
    steps, missing = row["steps"], {kind: "failed" for kind in row["failed"]}
    cells = [figure(k, steps[k]) if k in steps else missing.get(k, "–") for k in KINDS]
    return [[_name(row), *cells]]


def _compiling(row: Row) -> list[list[str]]:
    return _each_kind({**row, "failed": {}}, lambda _, step: f"{step['compile_seconds']:.1f}")


def _memory(row: Row) -> list[list[str]]:
    (cells,) = _each_kind({**row, "failed": {}}, lambda _, step: _mib(row, step))
    on_device = row["device_peak_bytes"]
    shown = "–" if on_device is None else f"{on_device / 2**20:.0f}"
    return [[*cells, f"{row['process_peak_mib']:.0f}", shown]]


def _limits(row: Row) -> list[list[str]]:
    steps, lines = row["steps"], []
    for kind in ("deterministic", "global"):
        limit, which = roof(row, kind)
        cells = [_ms(steps[n]["median_ms"]) for n in (kind, f"stream, {kind}", "matmul")]
        rate = row["flops_deterministic"] / steps["matmul"]["median_ms"] / 1e6
        share = f"{limit / steps[kind]['median_ms']:.0%}"
        lines.append([_name(row), kind, *cells, f"{rate:.0f}", which, share])
    return lines


def _reduction(row: Row) -> list[list[str]]:
    lines, step = [], row["steps"]["global"]["median_ms"]
    for rule, found in row["reduction"].items():
        times = [found["median_ms"], min(found["milliseconds"]), max(found["milliseconds"])]
        cells = [f"{found['elements']:,}", with_range(times, 1)]
        cells += [f"{found['nanoseconds_an_element']:.0f}", f"{times[0] / (500 * step):.2%}"]
        lines.append([_name(row), rule, *cells])
    return lines


def _peers(row: Row) -> list[list[str]]:
    steps, lines = row["steps"], []
    beside = {"mean-field": "global", "BMR": "global", "Tiered": "horseshoe"}
    for name, step in steps.items():
        if name in KINDS or "stream" in name or name == "matmul":
            continue
        ours = next((v for k, v in beside.items() if name.endswith(k)), "deterministic")
        if name.endswith("mask update"):
            found = row["reduction"]["spike-and-slab"]["median_ms"]
            shown, ratio = "reduction, spike-and-slab", f"{found / step['median_ms']:.2f}"
        elif ours not in steps:
            continue
        else:
            found, shown = steps[ours]["median_ms"], ours
            ratio = with_range(spread(steps[ours]["milliseconds"], step["milliseconds"]))
        cells = [step["driver"], _ms(step["median_ms"]), shown, _ms(found), ratio]
        lines.append([_name(row), name, *cells])
    for name, reason in row["not_timed"].items():
        lines.append([_name(row), name, "–", reason.split("\n")[0][:60], "–", "–", "–"])
    return lines


def _scaling(row: Row) -> list[list[str]]:
    steps = row["steps"]
    cells = [row["axis"], f"{row['value']:,}", f"{row['parameters']:,}"]
    cells += [_step(k, steps[k]) if k in steps else "–" for k in ("deterministic", *SWEPT)]
    return [[*cells, *(_ms(steps[limit]["median_ms"]) for limit in ("stream, global", "matmul"))]]


def _devices(row: Row) -> list[list[str]]:
    if "too_few" in row:
        return [[str(row["value"]), f"only {row['too_few']} there", *["–"] * 4]]
    lines, kind = [], "virtual" if row["virtual"] else "real"
    divided = {"one": "nothing", "data": "batch", "model": "parameters"}
    for name, step in row["steps"].items():
        ratio = "–" if name == "one" else with_range(step["ratio_to_one"])
        cells = [_ms(step["median_ms"]), ratio, _mib(row, step), f"{step['compile_seconds']:.1f}"]
        lines.append([f"{row['value']} {kind}", divided[name], *cells])
    return lines


def _seeds(row: Row) -> list[list[str]]:
    one, many = row["steps"]["one"], row["steps"]["many"]
    whole = [row["runs"][side]["seconds"] for side in ("one", "many")]
    times = [f"{side['median_ms']:.3f}" for side in (one, many)]
    compiling = f"{many['compile_seconds']:.1f} / {one['compile_seconds']:.1f}"
    cells = [*times, with_range(many["ratio_to_one"]), compiling]
    runs = [f"{whole[1]:.1f} / {whole[0]:.1f}", f"{whole[1] / whole[0]:.1f}"]
    return [[row["data"], row["estimator"], *cells, *runs]]


def _targets(rows: Rows) -> list[list[str]]:
    """Return a line for each target: what it is, what was measured."""
    lines = []

    def add(what: str, target: float, found: list[float]) -> None:
        lines.append([what, f"{target}", with_range(found), "yes" if found[0] <= target else "no"])

    for row in rows.where(what="network"):
        for kind in SWEPT:
            target, step = TARGETS.get((row["name"], kind)), row["steps"].get(kind)
            if target is not None and step is not None:
                what = f"{_name(row)}: `{kind}` / deterministic"
                add(what, target, step["ratio_to_deterministic"])
    for row in rows.where(what="seeds"):
        what = f"{row['data']}, `{row['estimator']}`: a step of {row['seeds']} seeds / of one"
        add(what, TARGET_SEEDS, row["steps"]["many"]["ratio_to_one"])
    return lines


def write_table(rows: Rows) -> None:
    """Write ``table.md``, and ``targets/table.md`` for the README."""
    networks, first, kinds = rows.where(what="network"), rows.rows[0], " | ".join(KINDS)
    growth = [row for axis in GROWTH for row in grown(rows, axis)]
    versions = ", ".join(f"{name} {v}" for name, v in first["versions"].items())
    loads = [row["load_average_before"] for row in rows.rows]
    where = f"{first['device']} ({first['cpu']}), {first['cores']} cores; {versions}; "
    where += f"Python {first['python']}"
    where += f"; load average before a row {min(loads):.1f} to {max(loads):.1f}"
    reasons = [
        f"{LABELS[row['name']]}, `{kind}`: {reason}"
        for row in networks
        for kind, reason in row["failed"].items()
    ]
    targets = table("what | at most | measured | met", _targets(rows))

    def part(found: list[Row], header: str, lines: Callable[[Row], list[list[str]]]) -> str:
        return table(header, [cells for row in found for cells in lines(row)])

    parts = [
        f"{where}. Medians; ratios are those within a turn, with the least and the largest.",
        targets,
        "A step, milliseconds, and times the deterministic one:",
        part(networks, f"network | {kinds}", lambda row: _each_kind(row, _step)),
        "Failed: " + ("; ".join(reasons) or "nothing") + ". What has a dash was not asked.",
        "To trace, lower and compile the training program, seconds:",
        part(networks, f"network | {kinds}", _compiling),
        "Memory that the compiled step plans for arguments and temporary arrays, without the data, MiB; the "
        "process at its peak, with all these programs, the compiler and the data; the device's own count, "
        "where it has one:",
        part(networks, f"network | {kinds} | process | device", _memory),
        "The limit: a stream over the bytes that a step must move at least (32 a parameter of the network: "
        "AdaBelief reads and writes a parameter and two moments, a gradient is written and read; twice that "
        "for a mean-field posterior), and a matrix product of as many operations as the "
        "deterministic step. The larger of the two is the limit:",
        part(
            networks, "network | step | ms | stream, ms | matmul, ms | its GFLOP/s | limit | of it",
            _limits,
        ),
        "A reduction (posteriors, criterion, cap):",
        part(
            networks, "network | criterion | elements | ms | ns an element | of 500 `global` steps",
            _reduction,
        ),
        "Other people's steps, in the same turns:",
        part(networks, "network | peer | driver | ms | beside our | ms | ours / theirs", _peers),
        "As an MLP grows: width of two hidden layers, hidden layers of 400, batch of 5 x 400:",
        part(
            growth,
            "axis | value | parameters | deterministic, ms | global | local | stream, ms | matmul, ms",
            _scaling,
        ),
        "Over devices, the `global` step of an MLP of 5 x 400 and a batch of 512: each device takes a part "
        "of the batch, or keeps a part of the parameters. Virtual devices share the cores, so they show what "
        "dividing costs, and no gain. Memory is what the program plans on each device, without the data:",
        part(
            rows.where(what="devices"),
            "devices | divided | ms | divided / one device | MiB a device | compile, s",
            _devices,
        ),
        "Ten seeds of an MLP 13-50-1 in one program, beside one; a whole run has its compilations in it:",
        part(
            rows.where(what="seeds"),
            "data | estimator | a step of one, ms | of ten, ms | ten / one"
            " | compile the step, s: ten / one | whole run, s: ten / one | its ratio",
            _seeds,
        ),
    ]  # fmt: skip
    rows.write_table("\n".join(part.rstrip("\n") + "\n" for part in parts))
    (rows.path.parent / "targets").mkdir(exist_ok=True)
    rows.write_table(targets, "targets/table.md")


# --- plot -----------------------------------------------------------------------------------------


def _draw_ratios(panel: Any, networks: list[Row]) -> None:
    kinds, width = KINDS[1:], 0.8 / max(len(networks), 1)
    for i, row in enumerate(networks):
        there = [kind for kind in kinds if kind in row["steps"]]
        found = [row["steps"][kind]["ratio_to_deterministic"] for kind in there]
        at = [kinds.index(kind) + (i - (len(networks) - 1) / 2) * width for kind in there]
        label = f"{LABELS[row['name']]}, batch {row['batch']}"
        middle = [a for a, _, _ in found]
        panel.bar(at, middle, width, yerr=_ends(found), label=label, capsize=2)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_yscale("log")
    marks = [0.5, 1, 2, 5, 10, 20, 50]
    panel.set_yticks(marks, [f"{m:g}" for m in marks])
    panel.minorticks_off()
    panel.set_xticks(range(len(kinds)), kinds)
    panel.set_ylabel("step / deterministic step")
    panel.set_title("What a step costs (range over the turns)")
    panel.legend(fontsize="small")


def _ends(found: list[list[float]]) -> list[list[float]]:
    return [[m - low for m, low, _ in found], [high - m for m, _, high in found]]


def _draw_limits(panel: Any, networks: list[Row]) -> None:
    for i, row in enumerate(networks):
        for j, kind in enumerate(("deterministic", "global")):
            limit, which = roof(row, kind)
            share, at = limit / row["steps"][kind]["median_ms"], i + (j - 0.5) * 0.4
            panel.bar(at, share, 0.4, color=f"C{7 + j}", label=None if i else kind)
            panel.text(at, share, which, ha="center", va="bottom", fontsize=6)
    names = [LABELS[row["name"]].replace(" ", "\n", 1) for row in networks]
    panel.set_xticks(range(len(networks)), names)
    panel.set_ylabel("limit / step")
    panel.set_title("Share of the limit reached")
    panel.legend(fontsize="small")


def _draw_growth(panel: Any, axis: str, points: list[Row]) -> None:
    styles = {"stream, global": ("0.6", ":"), "matmul": ("0.6", "--")}
    for i, name in enumerate(("deterministic", *SWEPT, *styles)):
        there = [row for row in points if name in row["steps"]]
        color, line = styles.get(name, (f"C{i}", "-"))
        x = [row["value"] for row in there]
        y = [row["steps"][name]["median_ms"] for row in there]
        panel.plot(x, y, line, color=color, marker="o", markersize=3, label=name)
    panel.set(xscale="log", yscale="log", xlabel=axis)
    panel.set_xticks([r["value"] for r in points], [str(r["value"]) for r in points])
    low, high = panel.get_ylim()
    marks = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    panel.set_yticks(marks, [f"{m:g}" for m in marks])
    panel.minorticks_off()
    panel.set_title(f"MLP: {axis}, ms a step")


def _draw_devices(panel: Any, points: list[Row]) -> None:
    x = [row["value"] for row in points]
    for name, label in (("data", "batch divided"), ("model", "parameters divided")):
        found = [row["steps"][name]["ratio_to_one"] for row in points]
        middle = [m for m, _, _ in found]
        panel.errorbar(x, middle, _ends(found), marker="o", capsize=2, label=label)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_xticks(x)
    panel.set_ylim(0)
    virtual = "virtual devices" if points[0]["virtual"] else "devices"
    panel.set(xlabel=virtual, title="MLP: step / one device's")


def draw(rows: Rows, path: Path) -> None:
    """Draw cost by network and kind, how far from the limit, and how costs grow."""
    networks = rows.where(what="network")
    ways = {axis: grown(rows, axis) for axis in GROWTH}
    ways["devices"] = [row for row in rows.where(what="devices") if "steps" in row]
    ways = {axis: points for axis, points in ways.items() if points}
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1)
    ratios, limits = top.subplots(1, 2, width_ratios=(2, 1))
    if networks:
        _draw_ratios(ratios, networks)
        _draw_limits(limits, networks)
    panels = bottom.subplots(1, max(len(ways), 1), squeeze=False)[0]
    for panel, (axis, points) in zip(panels, ways.items(), strict=False):
        if axis == "devices":
            _draw_devices(panel, points)
        else:
            _draw_growth(panel, axis, points)
    for panel in panels[: len(ways)]:
        panel.legend(fontsize="x-small")
    figure.savefig(path, dpi=110)


def write(rows: Rows) -> None:
    """Write tables and plot of the rows there are."""
    if rows.rows:
        write_table(rows)
        draw(rows, rows.path.parent / "speed.png")
