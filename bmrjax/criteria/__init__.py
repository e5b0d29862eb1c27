"""Who stays: a criterion turns a posterior and its prior into evidence differences and masks."""

from bmrjax.criteria.base import Criterion as Criterion
from bmrjax.criteria.base import Decision as Decision
from bmrjax.criteria.spike_slab import SpikeAndSlab as SpikeAndSlab
from bmrjax.criteria.spike_slab import SpikeAndSlabState as SpikeAndSlabState
