"""Model reduction of networks that are trained."""

from bmrjax.trained.baselines import METHODS as METHODS
from bmrjax.trained.baselines import Baseline as Baseline
from bmrjax.trained.baselines import reduce_by as reduce_by
from bmrjax.trained.choice import PathPoint as PathPoint
from bmrjax.trained.fine_tune import FineTune as FineTune
from bmrjax.trained.losses import BinaryCrossEntropy as BinaryCrossEntropy
from bmrjax.trained.losses import CrossEntropy as CrossEntropy
from bmrjax.trained.losses import FunctionLoss as FunctionLoss
from bmrjax.trained.losses import Loss as Loss
from bmrjax.trained.losses import SquaredError as SquaredError
from bmrjax.trained.network_reduction import NetworkReduction as NetworkReduction
from bmrjax.trained.reduce_network import reduce_network as reduce_network
from bmrjax.trained.unit_baselines import UNIT_METHODS as UNIT_METHODS
from bmrjax.trained.unit_options import UnitOptions as UnitOptions
from bmrjax.trained.unit_reduction import UnitReduction as UnitReduction
