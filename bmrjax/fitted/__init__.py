"""Model reduction of a fit that is finished: draws, a guide with parameters, or a mean and a covariance."""

from bmrjax.fitted.fit_reduction import FitReduction as FitReduction
from bmrjax.fitted.reduce_fit import reduce_fit as reduce_fit
