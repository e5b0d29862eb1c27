"""A small run of the command line on scikit-learn's digits."""

import json

from bmrjax import cli

SMALL = "--hidden 8 --num-epochs 6 --steps-per-epoch 5 --no-progress --num-samples 3".split()


def run(out, *arguments):
    cli.main(["sparsify", "--data", "digits", "--out", str(out), *SMALL, *arguments])
    return json.loads((out / "results.json").read_text())
