"""Tables and plot of `speed.py`."""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records

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
OURS = ("deterministic", "map", "global", "local", "moments", "noise", "horseshoe")
# What a step is to cost at most, times the deterministic one.
GLOBAL = {"lenet5": 1.1, "vit": 1.1, "mlp": 2.0, "mlp400": 2.0}
TARGETS = {(name, "global"): most for name, most in GLOBAL.items()}
TARGETS |= {(name, "local"): 2.2 for name in GLOBAL}
TARGET_SEEDS = 3.0


def say(line: str) -> None:
    """Tell whoever waits."""
    print(line, file=sys.stderr, flush=True)


def spread(found: list[float], digits: int = 2) -> str:
    """Return a median with its range."""
    middle, low, high = (f"{x:.{digits}f}" for x in found)
    return f"{middle} ({low} to {high})"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _of(rows: records.Rows, what: str) -> list[dict[str, Any]]:
    return [row for row in rows.rows if row["what"] == what]


def grown(rows: records.Rows, axis: str) -> list[dict[str, Any]]:
    """Return the rows along an axis, the smallest first."""
    found = [row for row in _of(rows, "scaling") if row["axis"] == axis]
    if axis in ON_THE_WAY:
        there = [r for r in _of(rows, "network") if (r["name"], r["batch"]) == ("mlp400", 128)]
        found += [{**row, "axis": axis, "value": ON_THE_WAY[axis]} for row in there]
    return sorted(found, key=lambda row: row["value"])


def _name(row: dict[str, Any]) -> str:
    return f"{LABELS[row['name']]}, {row['parameters']:,} weights, batch {row['batch']}"


def roof(row: dict[str, Any], kind: str) -> tuple[float, str]:
    """Return the milliseconds that nothing beats, and which of the two limits that is.

    The stream is that of the kind's parameters; the matrix product has the deterministic step's operations.
    """
    steps = row["steps"]
    limits = {"stream": f"stream, {kind}", "matmul": "matmul"}
    return max((steps[name]["median_ms"], label) for label, name in limits.items())


def _table(rows: list[Any], header: list[str], line: Callable[[Any], list[list[str]]]) -> str:
    return records.table(header, [cells for row in rows for cells in line(row)])


# --- tables -----------------------------------------------------------------------------------


def _steps(row: dict[str, Any]) -> list[list[str]]:
    cells = [_name(row)]
    for kind in OURS:
        step = row["steps"].get(kind)
        if step is None:
            cells.append("failed" if kind in row["failed"] else "–")
            continue
        shown = _ms(step["median_ms"])
        if kind != "deterministic":
            shown += ": " + spread(step["ratio_to_deterministic"])
        cells.append(shown)
    return [cells]


def _failures(networks: list[dict[str, Any]]) -> str:
    told = [
        f"{LABELS[row['name']]}, `{kind}`: {reason}"
        for row in networks
        for kind, reason in row["failed"].items()
    ]
    return "Failed: " + ("; ".join(told) or "nothing") + ". What has a dash was not asked."


def _costs(row: dict[str, Any], figure: Callable[[dict[str, Any]], str]) -> list[list[str]]:
    steps = row["steps"]
    return [[_name(row), *(figure(steps[kind]) if kind in steps else "–" for kind in OURS)]]


def _memory(row: dict[str, Any]) -> list[list[str]]:
    data = row["data_bytes"]

    def figure(step: dict[str, Any]) -> str:
        return f"{(step['plan_bytes']['peak'] - data) / 2**20:.1f}"

    on_device = row["device_peak_bytes"]
    shown = "–" if on_device is None else f"{on_device / 2**20:.0f}"
    return [[*_costs(row, figure)[0], f"{row['process_peak_mib']:.0f}", shown]]


def _limits(row: dict[str, Any]) -> list[list[str]]:
    steps, lines = row["steps"], []
    for kind in ("deterministic", "global"):
        limit, which = roof(row, kind)
        cells = [_ms(steps[n]["median_ms"]) for n in (kind, f"stream, {kind}", "matmul")]
        rate = row["flops_deterministic"] / steps["matmul"]["median_ms"] / 1e6
        cells += [f"{rate:.0f}", which, f"{limit / steps[kind]['median_ms']:.0%}"]
        lines.append([_name(row), kind, *cells])
    return lines


def _reduction(row: dict[str, Any]) -> list[list[str]]:
    step = row["steps"]["global"]["median_ms"]
    return [
        [
            _name(row),
            rule,
            f"{found['elements']:,}",
            f"{found['median_ms']:.1f} ({min(found['milliseconds']):.1f} to "
            f"{max(found['milliseconds']):.1f})",
            f"{found['nanoseconds_an_element']:.0f}",
            f"{found['median_ms'] / (500 * step):.2%}",
        ]
        for rule, found in row["reduction"].items()
    ]


def _peers(row: dict[str, Any]) -> list[list[str]]:
    steps, lines = row["steps"], []
    beside = {"mean-field": "global", "BMR": "global", "Tiered": "horseshoe"}
    for name, step in steps.items():
        if name in OURS or "stream" in name or name == "matmul":
            continue
        ours = next((v for k, v in beside.items() if name.endswith(k)), "deterministic")
        if name.endswith("mask update"):
            found = row["reduction"]["spike-and-slab"]["median_ms"]
            shown, ratio = "reduction, spike-and-slab", f"{found / step['median_ms']:.2f}"
        elif ours not in steps:
            continue
        else:
            found, shown = steps[ours]["median_ms"], ours
            pairs = zip(steps[ours]["milliseconds"], step["milliseconds"], strict=False)
            ratios = [a / b for a, b in pairs]
            ratio = spread([statistics.median(ratios), min(ratios), max(ratios)])
        lines.append(
            [_name(row), name, step["driver"], _ms(step["median_ms"]), shown, _ms(found), ratio]
        )
    lines += [
        [_name(row), name, "–", reason.split("\n")[0][:60], "–", "–", "–"]
        for name, reason in row["not_timed"].items()
    ]
    return lines


def _scaling(row: dict[str, Any]) -> list[list[str]]:
    steps = row["steps"]
    cells = [row["axis"], f"{row['value']:,}", f"{row['parameters']:,}"]
    for kind in ("deterministic", *SWEPT):
        if kind not in steps:
            cells.append("–")
            continue
        shown = _ms(steps[kind]["median_ms"])
        if kind != "deterministic":
            shown += ": " + spread(steps[kind]["ratio_to_deterministic"])
        cells.append(shown)
    cells.append(_ms(steps["stream, global"]["median_ms"]))
    cells.append(_ms(steps["matmul"]["median_ms"]))
    return [cells]


def _devices(row: dict[str, Any]) -> list[list[str]]:
    if "too_few" in row:
        return [[str(row["value"]), f"only {row['too_few']} there", *["–"] * 4]]
    lines = []
    for name, step in row["steps"].items():
        plan, ratio = step["plan_bytes"], step["ratio_to_one"]
        cells = [_ms(step["median_ms"]), "–" if name == "one" else spread(ratio)]
        held = (plan["peak"] - row["data_bytes"]) / 2**20
        parted = "nothing" if name == "one" else {"data": "batch", "model": "parameters"}[name]
        kind = "virtual" if row["virtual"] else "real"
        cells += [f"{held:.1f}", f"{step['compile_seconds']:.1f}"]
        lines.append([f"{row['value']} {kind}", parted, *cells])
    return lines


def _seeds(row: dict[str, Any]) -> list[list[str]]:
    one, many = row["steps"]["one"], row["steps"]["many"]
    cells = [row["data"], row["estimator"], f"{one['median_ms']:.3f}", f"{many['median_ms']:.3f}"]
    cells.append(spread(many["ratio_to_one"]))
    whole = [row["runs"][side]["seconds"] for side in ("one", "many")]
    compiling = [one["compile_seconds"], many["compile_seconds"]]
    cells += [f"{second:.1f} / {first:.1f}" for first, second in (compiling, whole)]
    return [[*cells, f"{whole[1] / whole[0]:.1f}"]]


def _targets(rows: records.Rows) -> list[list[str]]:
    """Return a line a target: what is asked, what was measured."""
    lines = []
    for row in _of(rows, "network"):
        for kind in SWEPT:
            target, step = TARGETS.get((row["name"], kind)), row["steps"].get(kind)
            if target is None or step is None:
                continue
            found = step["ratio_to_deterministic"]
            met = "yes" if found[0] <= target else "no"
            lines.append(
                [f"{_name(row)}: `{kind}` / deterministic", f"{target}", spread(found), met]
            )
    for row in _of(rows, "seeds"):
        found = row["steps"]["many"]["ratio_to_one"]
        met = "yes" if found[0] <= TARGET_SEEDS else "no"
        what = f"{row['data']}, `{row['estimator']}`: a step of {row['seeds']} seeds / of one"
        lines.append([what, f"{TARGET_SEEDS}", spread(found), met])
    return lines


def write_tables(rows: records.Rows) -> None:
    """Write ``table.md``, and ``targets/table.md`` for the README."""
    networks = _of(rows, "network")
    kinds = list(OURS)
    first = rows.rows[0]
    versions = ", ".join(f"{name} {v}" for name, v in first["versions"].items())
    loads = [row["load_average_before"] for row in rows.rows]
    where = f"{first['device']} ({first['cpu']}), {first['cores']} cores; {versions}; "
    where += f"Python {first['python']}"
    where += f"; load average before a row {min(loads):.1f} to {max(loads):.1f}"
    ask = ["what", "at most", "measured", "met"]
    targets = records.table(ask, _targets(rows))
    parts = [
        f"{where}. Medians; ratios are those within a turn, with the least and the largest.",
        targets,
        "A step, milliseconds, and times the deterministic one:",
        _table(networks, ["network", *kinds], _steps),
        _failures(networks),
        "To trace, lower and compile the training program, seconds:",
        _table(
            networks,
            ["network", *kinds],
            lambda row: _costs(row, lambda step: f"{step['compile_seconds']:.1f}"),
        ),
        "Memory that the compiled step plans for arguments and temporary arrays, without the data, MiB; the "
        "process at its peak, with all these programs, the compiler and the data; the device's own count, "
        "where it has one:",
        _table(networks, ["network", *kinds, "process", "device"], _memory),
        "The limit: a stream over the bytes that a step must move at least (32 a parameter of the network: "
        "AdaBelief reads and writes a parameter and two moments, a gradient is written and read; twice that "
        "for a mean-field posterior), and a matrix product of as many operations as the "
        "deterministic step. The larger of the two is the limit:",
        _table(
            networks,
            ["network", "step", "ms", "stream, ms", "matmul, ms", "its GFLOP/s", "limit", "of it"],
            _limits,
        ),
        "A reduction (posteriors, criterion, cap):",
        _table(
            networks,
            ["network", "criterion", "elements", "ms", "ns an element", "of 500 `global` steps"],
            _reduction,
        ),
        "Other people's steps, in the same turns:",
        _table(
            networks,
            ["network", "peer", "driver", "ms", "beside our", "ms", "ours / theirs"],
            _peers,
        ),
        "As an MLP grows: width of two hidden layers, hidden layers of 400, batch of 5 x 400:",
        _table(
            [row for axis in GROWTH for row in grown(rows, axis)],
            ["axis", "value", "parameters", "deterministic, ms", "global", "local", "stream, ms"]
            + ["matmul, ms"],
            _scaling,
        ),
        "Over devices, the `global` step of an MLP of 5 x 400 and a batch of 512: each device takes a part "
        "of the batch, or keeps a part of the parameters. Virtual devices share the cores, so they show what "
        "dividing costs, and no gain. Memory is what the program plans on each device, without the data:",
        _table(
            _of(rows, "devices"),
            ["devices", "divided", "ms", "divided / one device", "MiB a device", "compile, s"],
            _devices,
        ),
        "Ten seeds of an MLP 13-50-1 in one program, beside one; a whole run has its compilations in it:",
        _table(
            _of(rows, "seeds"),
            ["data", "estimator", "a step of one, ms", "of ten, ms", "ten / one"]
            + ["compile the step, s: ten / one", "whole run, s: ten / one", "its ratio"],
            _seeds,
        ),
    ]
    folder = rows.path.parent
    (folder / "table.md").write_text("\n".join(part.rstrip("\n") + "\n" for part in parts))
    (folder / "targets").mkdir(exist_ok=True)
    (folder / "targets" / "table.md").write_text(targets)


# --- plot -------------------------------------------------------------------------------------


def _draw_ratios(panel: Any, networks: list[dict[str, Any]]) -> None:
    kinds, width = OURS[1:], 0.8 / max(len(networks), 1)
    for i, row in enumerate(networks):
        at, middle, ends = [], [], []
        for j, kind in enumerate(kinds):
            if kind in row["steps"]:
                a, low, high = row["steps"][kind]["ratio_to_deterministic"]
                at.append(j + (i - (len(networks) - 1) / 2) * width)
                middle.append(a)
                ends.append((a - low, high - a))
        panel.bar(
            at,
            middle,
            width,
            yerr=list(zip(*ends, strict=True)),
            label=f"{LABELS[row['name']]}, batch {row['batch']}",
            capsize=2,
        )
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_yscale("log")
    marks = [0.5, 1, 2, 5, 10, 20, 50]
    panel.set_yticks(marks, [f"{m:g}" for m in marks])
    panel.minorticks_off()
    panel.set_xticks(range(len(kinds)), kinds)
    panel.set_ylabel("step / deterministic step")
    panel.set_title("What a step costs (range over the turns)")
    panel.legend(fontsize="small")


def _draw_limits(panel: Any, networks: list[dict[str, Any]]) -> None:
    for i, row in enumerate(networks):
        for j, kind in enumerate(("deterministic", "global")):
            limit, which = roof(row, kind)
            share, at = limit / row["steps"][kind]["median_ms"], i + (j - 0.5) * 0.4
            panel.bar(at, share, 0.4, color=f"C{7 + j}", label=None if i else kind)
            panel.text(at, share, which, ha="center", va="bottom", fontsize=6)
    panel.set_xticks(
        range(len(networks)), [LABELS[row["name"]].replace(" ", "\n", 1) for row in networks]
    )
    panel.set_ylabel("limit / step")
    panel.set_title("Share of the limit reached")
    panel.legend(fontsize="small")


def _draw_growth(panel: Any, axis: str, points: list[dict[str, Any]]) -> None:
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


def _draw_devices(panel: Any, points: list[dict[str, Any]]) -> None:
    for name, label in (("data", "batch divided"), ("model", "parameters divided")):
        x = [row["value"] for row in points]
        found = [row["steps"][name]["ratio_to_one"] for row in points]
        ends = [[m - low for m, low, _ in found], [high - m for m, _, high in found]]
        panel.errorbar(x, [m for m, _, _ in found], ends, marker="o", capsize=2, label=label)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_xticks([row["value"] for row in points])
    panel.set_ylim(0)
    virtual = "virtual devices" if points[0]["virtual"] else "devices"
    panel.set(xlabel=virtual, title="MLP: step / one device's")


def draw(rows: records.Rows, path: Path) -> None:
    """Draw cost by network and kind, how far from the limit, and how costs grow."""
    from matplotlib.figure import Figure

    networks = _of(rows, "network")
    ways = {axis: grown(rows, axis) for axis in GROWTH}
    ways["devices"] = [row for row in _of(rows, "devices") if "steps" in row]
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


def write(rows: records.Rows) -> None:
    """Write tables and plot of the rows there are."""
    if rows.rows:
        write_tables(rows)
        draw(rows, rows.path.parent / "speed.png")
