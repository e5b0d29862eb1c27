"""Propagation of means and variances through any traceable function, by its jaxpr."""

from bmrjax.infer.propagate import control as _control  # noqa: F401 - registers rules
from bmrjax.infer.propagate import linear as _linear  # noqa: F401
from bmrjax.infer.propagate import nonlinear as _nonlinear  # noqa: F401
from bmrjax.infer.propagate.interpreter import Context as Context
from bmrjax.infer.propagate.interpreter import NoRuleError as NoRuleError
from bmrjax.infer.propagate.interpreter import is_uncertain as is_uncertain
from bmrjax.infer.propagate.interpreter import propagate as propagate
from bmrjax.infer.propagate.uncertain import GammaVariable as GammaVariable
from bmrjax.infer.propagate.uncertain import Uncertain as Uncertain
