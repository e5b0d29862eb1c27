"""The commands that read a finished run: `bmrjax info`, `bmrjax predict` and `bmrjax compact`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax import nn
from bmrjax.cli.compressed_network import CompressedNetwork
from bmrjax.cli.run_documents import read_results
from bmrjax.cli.run_report import shown, summary_of
from bmrjax.cli.saved_options import CompactOptions, InfoOptions, PredictOptions
from bmrjax.cli.saved_run import loaded_run, of_a_whole_run
from bmrjax.data.csv_file import read_csv
from bmrjax.data.numpy_file import read_arrays
from bmrjax.data.signals import SIGNALS
from bmrjax.data.sources import BUNDLED, HUB, load_dataset
from bmrjax.data.table_encoding import TableEncoding, as_numbers, as_text
from bmrjax.errors import DamagedFileError
from bmrjax.files import write_atomically
from bmrjax.structure import compact, named_arrays


def run_info(options: InfoOptions) -> None:
    """Print what a run reached."""
    document = read_results(options.directory)
    print(summary_of(document))
    if options.path:
        print("  path: epoch, weights kept, VFE per data point, held-out metrics")
        for i, point in enumerate(document["path"]):
            scores = ", ".join(f"{k} {shown(v, '.4g')}" for k, v in point["metrics"].items())
            where = f"{i:3d}  {point['epoch']:5d}  {point['kept']:10,d}"
            back = "  taken back" * point.get("taken_back", False)
            print(f"    {where}  {shown(point['vfe_per_datum'], '.4f')}  {scores}{back}")


def run_predict(options: PredictOptions) -> None:
    """Predict with a saved run, or with a compressed network."""
    if options.num_samples < 1:
        raise ValueError(f"--num-samples must be at least 1, got {options.num_samples}.")
    file = CompressedNetwork(options.directory) if options.directory.is_file() else None
    document = file.about if file else read_results(options.directory)
    x, y = _raw_data(options, document)
    if list(x.shape[1:]) != document["input_shape"]:
        raise ValueError(
            f"{options.data} has inputs of shape {x.shape[1:]}, the run was trained on "
            f"{tuple(document['input_shape'])}."
        )
    mean, scale = (np.asarray(document[f"input_{part}"]) for part in ("mean", "scale"))
    with np.errstate(over="ignore"):
        x = ((x - mean) / scale).astype(np.float32)
    if not np.isfinite(x).all():
        raise ValueError(
            f"{options.data}: some inputs are too large for float32, in units of the network."
        )
    if file:
        values = file.predict(x)
    else:
        run, result = loaded_run(options.directory, document)
        samples = options.num_samples if run.method != "map" else 1
        with of_a_whole_run(options.directory):
            prediction = result.predict(jax.random.key(options.seed), x, num_samples=samples)
            values = np.asarray(prediction.mean)
    if document["num_classes"] is None:
        values = _in_units(values, document)
    if bad := np.size(values) - np.isfinite(values).sum():
        raise ValueError(f"{bad:,} of {np.size(values):,} predictions are not finite.")
    if y is not None:
        print(_score(values, y, document))
    if options.out is None:
        print(f"predictions of shape {values.shape}; --out writes them")
        return
    if options.out.suffix == ".csv":
        write_atomically(options.out, lambda staged: _write_csv(staged, values, document))
    else:
        write_atomically(options.out, lambda staged: _write_npy(staged, values))
    print(f"predictions of shape {values.shape} in {options.out}")


def _in_units(values: Any, document: dict[str, Any]) -> Any:
    """Return predictions in the targets' own unit."""
    mean, scale = (np.asarray(document[f"target_{part}"], np.float64) for part in ("mean", "scale"))
    if np.ndim(values) == 1:
        mean, scale = mean.reshape(()), scale.reshape(())
    with np.errstate(over="ignore"):
        return values * scale + mean


def _of_targets(document: dict[str, Any], part: str, values: Any) -> np.ndarray:
    """Return the mean or the scale of the targets of the run, for targets in a vector or in columns."""
    found = np.asarray(document[f"target_{part}"], np.float64)
    return found.reshape(()) if np.ndim(values) == 1 and found.size == 1 else found


def _write_npy(path: Path, values: Any) -> None:
    with path.open("wb") as file:  # given a path, NumPy appends .npy where there is another suffix
        np.save(file, values)


def _write_csv(path: Path, values: Any, document: dict[str, Any]) -> None:
    """Write predictions under the names of the targets, or of the classes and the likeliest of them."""
    import csv

    values = np.asarray(values).reshape(len(values), -1)
    count = values.shape[1]
    classes = document["num_classes"] is not None
    names = document.get("class_names" if classes else "target_names")
    names = names or [f"{'class' if classes else 'target'} {i}" for i in range(count)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(["predicted"] if classes else []), *names])
        for row in values.tolist():
            best = [names[int(np.argmax(row))]] if classes else []
            writer.writerow([*best, *row])


def _raw_data(options: PredictOptions, document: dict[str, Any]) -> tuple[Any, Any]:
    """Return inputs in their own unit, and the targets where the data have them, standardised."""
    name = str(options.data)
    if options.data.is_file() or name not in (*BUNDLED, *HUB, *SIGNALS):
        if not options.data.is_file():
            raise FileNotFoundError(
                f"There is no file {options.data}, and no data set of this name."
            )
        if options.data.suffix.lower() in (".csv", ".tsv", ".txt"):
            return _from_csv(options.data, document)
        return _inputs(options.data), None
    # The rows that the run was tested on.
    seed = document.get("config", document).get("split_seed", 0)
    if type(seed) is not int or seed < 0:
        raise DamagedFileError(f"{options.directory} is damaged: 'split_seed' is {seed!r:.60}.")
    found: Any = load_dataset(name, data_root=options.data_root, seed=seed)
    y: Any = found.test[1]
    if document["num_classes"] is None and found.target_scale is not None:
        y = (np.asarray(y, np.float64) * found.target_scale + found.target_mean).reshape(
            np.shape(y)
        )
        y = (y - _of_targets(document, "mean", y)) / _of_targets(document, "scale", y)
    return found.test[0] * found.input_scale + found.input_mean, y


def _from_csv(path: Path, document: dict[str, Any]) -> tuple[Any, Any]:
    """Return the inputs of a CSV file with the columns of the run's, and its targets if it has them."""
    if document.get("table") is None:
        raise ValueError(
            f"{path}: predict reads inputs from .npy or .npz. A .csv needs the folder of a run that was "
            "trained on a .csv, which knows the names of its columns."
        )
    encoding = TableEncoding.from_json(document["table"])
    frame: Any = read_csv(path, categories=document["config"]["categories"])
    x = encoding.encode(frame, name=str(path))
    for note in encoding.unknown(frame):
        print(f"note: {note}.")
    targets = document["target_names"]
    if not set(targets) <= set(frame.columns):
        return x, None
    blank = int(frame[targets].isna().any(axis=1).sum())
    if blank == len(frame):
        return x, None
    if blank:
        print(f"note: predictions are not scored: {blank} of {len(frame)} rows have no target.")
        return x, None
    if document["num_classes"] is not None:
        position = {name: i for i, name in enumerate(document["class_names"])}
        cells = [str(cell) for cell in as_text(frame[targets[0]])]
        unknown = [cell for cell in cells if cell not in position]
        if unknown:
            print(
                f"note: predictions are not scored: {len(unknown)} of {len(cells)} targets, such as "
                f"'{unknown[0]}', are none of the classes of the run."
            )
            return x, None
        return x, np.array([position[cell] for cell in cells])
    y = np.stack([as_numbers(frame[column], str(path)) for column in targets], 1)
    y = (y - np.asarray(document["target_mean"])) / np.asarray(document["target_scale"])
    return x, y[:, 0] if len(targets) == 1 else y


def _score(values: Any, y: Any, document: dict[str, Any]) -> str:
    if document["num_classes"] is not None:
        return (
            f"accuracy {np.mean(values.argmax(1) == np.asarray(y)):.4f} on {len(y):,} data points"
        )
    mean, scale = (np.asarray(document[f"target_{part}"]) for part in ("mean", "scale"))
    errors = ((values - mean) / scale).reshape(np.shape(y)) - np.asarray(y)
    text = f"RMSE {np.sqrt(np.square(errors).mean()):.4f} (standardised target"
    errors = errors.reshape(len(errors), -1)
    units = np.sqrt(np.square(errors).mean(0)) * np.broadcast_to(scale.ravel(), errors.shape[1:])
    names = document.get("target_names") or [f"target {i}" for i in range(len(units))]
    if len(units) == 1 and not document.get("target_names"):
        names = ["the target"]
    own = ", ".join(
        f"{unit:.4g} in the unit of {name}" for unit, name in zip(units, names, strict=True)
    )
    return f"{text}), {own}, on {len(y):,} data points"


def run_compact(options: CompactOptions) -> None:
    """Make a saved run's network smaller."""
    from safetensors.numpy import save_file

    document = read_results(options.directory)
    if options.repeats < 0 or any(size < 1 for size in options.batch_sizes):
        raise ValueError("--repeats must be at least 0, and --batch-sizes at least 1.")
    if options.out is not None and options.out.suffix != ".safetensors":
        raise ValueError(f"--out {options.out} must end in .safetensors.")
    run, result = loaded_run(options.directory, document)
    example = jnp.zeros((2, *document["input_shape"]))
    with of_a_whole_run(options.directory):
        if run.method == "with-noise":
            plain = nn.without_noise(result.network(example)["net"])
            found = compact(plain, example[0], drop_inputs=True)
        else:
            (found,) = result.compact(example, drop_inputs=True).values()
    print(found)
    sizes = options.batch_sizes if options.repeats else ()
    for row in found.latency(batch_sizes=sizes, repeats=options.repeats):
        times = f"{row.before:.3f} ms -> {row.after:.3f} ms ({row.speedup:.2f}x)"
        print(f"batch of {row.batch_size}: {times} on {row.device}")
    if options.out is None:
        return
    arrays = {name: np.asarray(array) for name, array in named_arrays(found.network).items()}
    if found.inputs is not None:
        arrays["inputs"] = found.inputs
    write_atomically(options.out, lambda staged: save_file(arrays, staged))
    print(f"{len(arrays)} arrays in {options.out}. To load them in Python:")
    print(f"  safetensors.numpy.load_file({str(options.out)!r})")
    print("As a network, in a small file with rounded weights:")
    print(f"  bmrjax compress {options.directory} --out {options.out.with_suffix('.bmr')}")
    print(f"  bmrjax.codec.load_network({str(options.out.with_suffix('.bmr'))!r})")
    if found.inputs is not None:
        print("The smaller network reads x[:, inputs], of the flattened inputs.")


def _inputs(path: Path) -> Any:
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(
            f"{path}: predict reads inputs from .npy or .npz. Of a .csv, take the columns of the inputs, "
            "as with numpy.loadtxt, and save them by numpy.save."
        )
    arrays = read_arrays(path)
    x = arrays.get("", arrays.get("x"))
    if x is None:
        raise ValueError(f"{path} holds the arrays {sorted(arrays)}, expected an array x.")
    if x.dtype.kind not in "iufb" or not np.isfinite(x).all():
        raise ValueError(f"{path}: the inputs must be finite numbers.")
    if x.ndim < 2 or not len(x):
        raise ValueError(f"{path}: the inputs have shape {x.shape}; give one row per data point.")
    return np.asarray(x, np.float64)
