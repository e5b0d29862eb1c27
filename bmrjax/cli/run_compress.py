"""`bmrjax compress`."""

from typing import Any

import jax.numpy as jnp

from bmrjax import codec, nn
from bmrjax.cli.compressed_network import STORED
from bmrjax.cli.run_documents import read_results
from bmrjax.cli.saved_options import CompressOptions
from bmrjax.cli.saved_run import loaded_run, of_a_whole_run
from bmrjax.structure import compact
from bmrjax.structure.network_arrays import is_nnx


def run_compress(options: CompressOptions) -> None:
    """Write a saved run's network as a small file."""
    document = read_results(options.directory)
    quantiser = _quantiser(options)
    if options.coder == "huffman" and options.layout == "bitmap":
        raise ValueError("--layout bitmap needs --coder range or ans.")

    run, result = loaded_run(options.directory, document)
    example = jnp.zeros((2, *document["input_shape"]))
    with of_a_whole_run(options.directory):
        (network,) = result.network(example).values()
        scales = codec.posterior_scales(result, example) if result.keep else None
    if run.method == "with-noise":
        network = nn.without_noise(network)
    if options.compact:
        network = compact(network, example if is_nnx(network) else example[0], drop_inputs=True)
    layouts = {
        "csr": codec.CSR(options.offset_bits),
        "gaps": codec.Gaps(),
        "bitmap": codec.Bitmap(),
        "smallest": None,
    }
    report = codec.save_network(
        network,
        options.out,
        posterior_scale=scales,
        quantiser=quantiser,
        layout=layouts[options.layout],
        coder=options.coder,
        extra=_extra(document),
    )
    print(report)
    print(f"written to {options.out}")


def _quantiser(options: CompressOptions) -> Any:
    if options.rate is not None and options.quantiser != "rate-distortion":
        raise ValueError("--rate goes with --quantiser rate-distortion.")
    if options.quantiser == "rate-distortion":
        rate = codec.RateDistortion().rate if options.rate is None else options.rate
        return codec.RateDistortion(rate, without_posterior=codec.Uniform(options.tolerance))
    return {
        "k-means": lambda: codec.KMeans(options.clusters),
        "uniform": lambda: codec.Uniform(options.tolerance),
        "relative-entropy": lambda: codec.RelativeEntropy(seed=options.seed),
    }[options.quantiser]()


def _extra(document: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored beside the network: shape and units of the data, and how they were split."""
    found = {name: _short(document[name]) for name in STORED if document[name] is not None}
    seed = document["config"].get("split_seed", 0)
    return found | ({"split_seed": seed} if seed else {})


def _short(value: Any) -> Any:
    """Return numbers with the digits of float32 in them, and no more."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value
