"""Networks inside NumPyro programs, with random weights or with noise, and files of their arrays."""

from typing import TYPE_CHECKING

import lazy_loader

from bmrjax.nn.from_torch import from_torch as from_torch
from bmrjax.nn.multiplicative_noise import MultiplicativeNoise as MultiplicativeNoise
from bmrjax.nn.random_module import RandomModule as RandomModule
from bmrjax.nn.random_module import random_module as random_module
from bmrjax.nn.weights import load_weights as load_weights
from bmrjax.nn.weights import save_weights as save_weights
from bmrjax.nn.with_noise import Noisy as Noisy
from bmrjax.nn.with_noise import with_noise as with_noise
from bmrjax.nn.with_noise import without_noise as without_noise

# Flax takes .7 s to load, which only those wait for who use it.
if TYPE_CHECKING:
    from bmrjax.nn.nnx_multiplicative_noise import (
        NNXMultiplicativeNoise as NNXMultiplicativeNoise,
    )
else:
    __getattr__, _, _ = lazy_loader.attach(
        __name__,
        submod_attrs={
            "nnx_multiplicative_noise": ["NNXMultiplicativeNoise"],
        },
    )
