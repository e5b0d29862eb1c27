"""Fitting: the compiled SVI engine, its start, its posterior, and held-out evaluation."""

from bmrjax.convergence import Settled as Settled
from bmrjax.infer.correlated import CorrelatedGuide as CorrelatedGuide
from bmrjax.infer.curvature import Curvature as Curvature
from bmrjax.infer.engine import Engine as Engine
from bmrjax.infer.estimate import PropagatedELBO as PropagatedELBO
from bmrjax.infer.estimate import elbo as elbo
from bmrjax.infer.free_energy import FreeEnergy as FreeEnergy
from bmrjax.infer.guide import AutoMeanField as AutoMeanField
from bmrjax.infer.init import init_to_network as init_to_network
from bmrjax.infer.joint_guide import AutoLowRank as AutoLowRank
from bmrjax.infer.joint_guide import AutoMultivariate as AutoMultivariate
from bmrjax.infer.joint_guide import JointGuide as JointGuide
from bmrjax.infer.matrix_guide import AutoMatrixNormal as AutoMatrixNormal
from bmrjax.infer.natural_gradient import NaturalGradient as NaturalGradient
from bmrjax.infer.natural_weights import natural_weights as natural_weights
from bmrjax.infer.prediction import Prediction as Prediction
from bmrjax.infer.pruned_guide import PrunedGuide as PrunedGuide
from bmrjax.infer.pruned_guide import unpruned as unpruned
from bmrjax.infer.readable_guide import ReadableGuide as ReadableGuide
from bmrjax.infer.state import EpochInfo as EpochInfo
from bmrjax.infer.state import State as State
from bmrjax.infer.with_networks import with_networks as with_networks
