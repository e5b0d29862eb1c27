"""Networks as files: what one takes in bytes and seconds, and the rate that data kept out allow."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common.networks import log_probs, scores
from bmrjax import codec

# Nats per bit.
RATES = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
# How much more the data kept out may cost after quantisation, in nats per data point and relative.
LOSS = 0.01


def measure(network: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the network that is decoded from its file, and the file's row."""
    begin = time.perf_counter()
    data = codec.encode(network, **options)
    middle = time.perf_counter()
    decoded = codec.decode(data)
    end = time.perf_counter()
    report = codec.inspect_file(data)
    return decoded, {
        "bytes": len(data),
        "ratio": report.ratio,
        "original": report.original,
        "entries": report.entries,
        "description": report.description,
        "arrays": [vars(row) for row in report.rows],
        "encode_seconds": middle - begin,
        "decode_seconds": end - middle,
    }


def chosen_rate(
    network: Any, scales: Any, nll: Callable[[Any], float], most: float, rates: Sequence[float] = RATES
) -> float:  # fmt: skip
    """Return the largest rate up to which the decoded networks have at most a certain `nll`."""
    good = rates[0]
    for rate in rates:
        quantiser = codec.RateDistortion(rate)
        data = codec.encode(network, posterior_scale=scales, quantiser=quantiser)
        if nll(codec.decode(data)) > most:
            break
        good = rate
    return good


def split_scores(network: Any, **splits: Any) -> dict[str, float]:
    """Return accuracy and NLL on splits, such as ``test_accuracy``."""
    return {
        f"{split}_{what}": value
        for split, (x, y) in splits.items()
        for what, value in scores(log_probs(network, x, 5000), y).items()
    }
