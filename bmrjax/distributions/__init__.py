"""NumPyro distributions for programs: of shrinkage priors, multiplicative noise, and with removed elements.

Those that belong to a family of posteriors are in `bmrjax.families`.
"""

from bmrjax.distributions.precision_normal import PrecisionNormal as PrecisionNormal
from bmrjax.distributions.precision_normal import expected_log_prob as expected_log_prob
from bmrjax.families import DiscreteSpikeAndSlab as DiscreteSpikeAndSlab
from bmrjax.families import ImproperReciprocal as ImproperReciprocal
from bmrjax.families import LogGamma as LogGamma
from bmrjax.families import NotElementwiseError as NotElementwiseError
from bmrjax.families import PerDatum as PerDatum
from bmrjax.families import Prunable as Prunable
from bmrjax.families import PrunedElements as PrunedElements
from bmrjax.families import PrunedJoint as PrunedJoint
from bmrjax.families import RelaxedSpikeAndSlab as RelaxedSpikeAndSlab
from bmrjax.families import ScaledMatrixNormal as ScaledMatrixNormal
from bmrjax.families import SharedCenters as SharedCenters
from bmrjax.families import StraightThroughSpikeAndSlab as StraightThroughSpikeAndSlab
from bmrjax.families import TruncatedLogNormal as TruncatedLogNormal
from bmrjax.families import TruncatedLogUniform as TruncatedLogUniform
from bmrjax.families import atoms_are_known as atoms_are_known
from bmrjax.families import center as center
from bmrjax.families import elementwise as elementwise
from bmrjax.families import mixture_log_prob as mixture_log_prob
from bmrjax.families import normal_parameters as normal_parameters
from bmrjax.families import pruned as pruned
from bmrjax.families import pruned_joint as pruned_joint
