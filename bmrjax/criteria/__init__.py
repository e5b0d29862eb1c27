"""Criteria: from a posterior and its prior to evidence differences and masks."""

from bmrjax.criteria.base import Criterion as Criterion
from bmrjax.criteria.base import Decision as Decision
from bmrjax.criteria.dropout_rate import DropoutRate as DropoutRate
from bmrjax.criteria.groups import Groups as Groups
from bmrjax.criteria.horseshoe import RegularizedHorseshoe as RegularizedHorseshoe
from bmrjax.criteria.inclusion import Inclusion as Inclusion
from bmrjax.criteria.limit import limit as limit
from bmrjax.criteria.log_normal import BMRSNormal as BMRSNormal
from bmrjax.criteria.log_normal import BMRSUniform as BMRSUniform
from bmrjax.criteria.order import Order as Order
from bmrjax.criteria.order import default_order as default_order
from bmrjax.criteria.order import largest_delta_f_first as largest_delta_f_first
from bmrjax.criteria.order import smallest_magnitude_first as smallest_magnitude_first
from bmrjax.criteria.order import smallest_snr_first as smallest_snr_first
from bmrjax.criteria.ranking import GivenScores as GivenScores
from bmrjax.criteria.ranking import Magnitude as Magnitude
from bmrjax.criteria.ranking import Ranking as Ranking
from bmrjax.criteria.ranking import SignalPlusRobustness as SignalPlusRobustness
from bmrjax.criteria.ranking import SignalToNoise as SignalToNoise
from bmrjax.criteria.shrinkage import Shrinkage as Shrinkage
from bmrjax.criteria.site_posteriors import SitePosteriors as SitePosteriors
from bmrjax.criteria.spike_slab import SpikeAndSlab as SpikeAndSlab
