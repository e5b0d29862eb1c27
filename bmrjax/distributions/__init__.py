"""NumPyro distributions: with removed elements, for shrinkage priors, and their exact KL rules."""

from bmrjax.distributions.elements import NotElementwiseError as NotElementwiseError
from bmrjax.distributions.elements import Prunable as Prunable
from bmrjax.distributions.elements import PrunedElements as PrunedElements
from bmrjax.distributions.elements import center as center
from bmrjax.distributions.elements import elementwise as elementwise
from bmrjax.distributions.elements import normal_parameters as normal_parameters
from bmrjax.distributions.elements import pruned as pruned
from bmrjax.distributions.elements import stored_normal_parameters as stored_normal_parameters
from bmrjax.distributions.improper import ImproperLogUniform as ImproperLogUniform
from bmrjax.distributions.improper import is_log_uniform as is_log_uniform
from bmrjax.distributions.joint import PrunedJoint as PrunedJoint
from bmrjax.distributions.joint import without as without
from bmrjax.distributions.log_gamma import LogGamma as LogGamma
from bmrjax.distributions.matrix_normal import ScaledMatrixNormal as ScaledMatrixNormal
from bmrjax.distributions.per_datum import PerDatum as PerDatum
from bmrjax.distributions.per_datum import log_normal_parameters as log_normal_parameters
from bmrjax.distributions.precision_normal import PrecisionNormal as PrecisionNormal
from bmrjax.distributions.precision_normal import expected_log_prob as expected_log_prob
from bmrjax.distributions.shared_centers import SharedCenters as SharedCenters
from bmrjax.distributions.shared_centers import mixture_log_prob as mixture_log_prob
from bmrjax.distributions.spike_slab import RelaxedSpikeAndSlab as RelaxedSpikeAndSlab
from bmrjax.distributions.spike_slab import SpikeAndSlab as SpikeAndSlab
from bmrjax.distributions.spike_slab import (
    StraightThroughSpikeAndSlab as StraightThroughSpikeAndSlab,
)
from bmrjax.distributions.spike_slab import atoms_are_known as atoms_are_known
from bmrjax.distributions.spike_slab import (
    spike_and_slab_parameters as spike_and_slab_parameters,
)
from bmrjax.distributions.truncated_log import TruncatedLogNormal as TruncatedLogNormal
from bmrjax.distributions.truncated_log import TruncatedLogUniform as TruncatedLogUniform
