"""Bayesian model reduction for JAX and NumPyro."""

import lazy_loader

# Notes forks from here on.
import bmrjax.backend.forked  # noqa: F401
from bmrjax.network_packages import offer_networks

__version__ = "0.2.0"

# What there is stands in `__init__.pyi`, for type checkers and readers alike.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# What has the layers and networks that a compressed file may name; loaded when a file is written or read.
offer_networks("bmrjax.nn")
offer_networks("bmrjax.zoo")
