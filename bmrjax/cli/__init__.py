"""The command line. The only place that maps words to objects."""

import os
import sys

import tyro

from bmrjax.cli.compress import run_compress
from bmrjax.cli.options import Compact, Compress, Info, Predict, Sparsify
from bmrjax.cli.reduce import Reduce, run_reduce
from bmrjax.cli.saved import run_compact, run_info, run_predict
from bmrjax.cli.sparsify import run_sparsify


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors are one line on stderr and exit code 2."""
    command = tyro.extras.subcommand_cli_from_dict(
        {
            "sparsify": Sparsify,
            "info": Info,
            "predict": Predict,
            "compact": Compact,
            "compress": Compress,
            "reduce": Reduce,
        },
        prog="bmrjax",
        description="Bayesian model reduction for JAX and NumPyro.",
        args=arguments,
    )
    run = {
        Sparsify: run_sparsify,
        Info: run_info,
        Predict: run_predict,
        Compact: run_compact,
        Compress: run_compress,
        Reduce: run_reduce,
    }[type(command)]
    try:
        run(command)
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        if os.environ.get("BMRJAX_DEBUG"):
            raise
        print(f"bmrjax: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("bmrjax: stopped; --resume goes on from the last checkpoint.", file=sys.stderr)
        raise SystemExit(130) from None
