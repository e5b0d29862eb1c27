"""Bayesian model reduction for JAX and NumPyro."""

from bmrjax import codec as codec
from bmrjax import criteria as criteria
from bmrjax import data as data
from bmrjax import handlers as handlers
from bmrjax import infer as infer
from bmrjax import metrics as metrics
from bmrjax import nn as nn
from bmrjax import plot as plot
from bmrjax import priors as priors
from bmrjax import programs as programs
from bmrjax import reduction as reduction
from bmrjax import schedules as schedules
from bmrjax import streaming as streaming
from bmrjax import structure as structure
from bmrjax.batches import Batches as Batches
from bmrjax.diagnose import Finding as Finding
from bmrjax.diagnose import FitWarning as FitWarning
from bmrjax.ensemble import ensemble as ensemble
from bmrjax.errors import EnsembleError as EnsembleError
from bmrjax.errors import InterruptedFit as InterruptedFit
from bmrjax.errors import NonFiniteError as NonFiniteError
from bmrjax.hyperparameter import hyperparameter as hyperparameter
from bmrjax.infer import init_to_network as init_to_network
from bmrjax.inspect_program import inspect as inspect
from bmrjax.inspection import Inspection as Inspection
from bmrjax.inspection import SiteReport as SiteReport
from bmrjax.load_result import load as load
from bmrjax.nn import lift as lift
from bmrjax.point import Point as Point
from bmrjax.report import FreeEnergyCurve as FreeEnergyCurve
from bmrjax.report import FreeEnergyReport as FreeEnergyReport
from bmrjax.report import free_energy_report as free_energy_report
from bmrjax.result import Result as Result
from bmrjax.sparsify import sparsify as sparsify
from bmrjax.structure import compact as compact
from bmrjax.trade_off import TradeOff as TradeOff
from bmrjax.trade_off import trade_off as trade_off

__version__ = "0.1.0"
