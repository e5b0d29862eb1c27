"""Priors as NumPyro sub-programs: each draws the tensors of one layer, or a plain array."""

from bmrjax.priors.base import Prior as Prior
from bmrjax.priors.flat import Flat as Flat
from bmrjax.priors.horseshoe import RegularizedHorseshoePrior as RegularizedHorseshoePrior
from bmrjax.priors.log_uniform import LogUniformPrior as LogUniformPrior
from bmrjax.priors.normal import NormalPrior as NormalPrior
from bmrjax.priors.soft_weight_sharing import Components as Components
from bmrjax.priors.soft_weight_sharing import SoftWeightSharing as SoftWeightSharing
from bmrjax.priors.spike_slab import SpikeAndSlabPrior as SpikeAndSlabPrior
