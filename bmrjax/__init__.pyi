"""The public surface. Modules are imported when they are first used."""

from . import callbacks as callbacks
from . import codec as codec
from . import criteria as criteria
from . import data as data
from . import handlers as handlers
from . import infer as infer
from . import metrics as metrics
from . import nn as nn
from . import plot as plot
from . import priors as priors
from . import programs as programs
from . import reduction as reduction
from . import schedules as schedules
from . import streaming as streaming
from . import structure as structure
from .criteria import limit as limit
from .errors import CallbackError as CallbackError
from .errors import EnsembleError as EnsembleError
from .errors import InterruptedFit as InterruptedFit
from .errors import NonFiniteError as NonFiniteError
from .handlers import prune as prune
from .infer import init_to_network as init_to_network
from .infer.posterior import site_posteriors as site_posteriors
from .judge.free_energy_report import FreeEnergyCurve as FreeEnergyCurve
from .judge.free_energy_report import FreeEnergyReport as FreeEnergyReport
from .judge.free_energy_report import free_energy_report as free_energy_report
from .nn import random_module as random_module
from .run.batches import Batches as Batches
from .run.diagnose import Finding as Finding
from .run.diagnose import FitWarning as FitWarning
from .run.ensemble import ensemble as ensemble
from .run.fit import Fit as Fit
from .run.hyperparameter import hyperparameter as hyperparameter
from .run.inspect_program import inspect as inspect
from .run.inspection import Inspection as Inspection
from .run.inspection import SiteReport as SiteReport
from .run.load_result import load as load
from .run.point import Point as Point
from .run.reducer import FitState as FitState
from .run.result import Result as Result
from .run.sparsify import sparsify as sparsify
from .run.trade_off import TradeOff as TradeOff
from .run.trade_off import trade_off as trade_off
from .structure import compact as compact

__version__: str
