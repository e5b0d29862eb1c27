"""Plots of a result. They need matplotlib, and draw on no screen.

Colours are those of Okabe and Ito (2008), which readers with any colour vision tell apart. What ArviZ draws
better, of posteriors as such, it draws of `Result.to_arviz`; each function here says which.

Each function returns a `matplotlib.figure.Figure`, for ``figure.savefig(path)``. In a notebook it is
shown as the value of a cell, once the notebook has run ``%matplotlib inline``.
"""

from bmrjax.plot.finished_fits import inclusion as inclusion
from bmrjax.plot.finished_fits import sizes as sizes
from bmrjax.plot.free_energies import free_energy as free_energy
from bmrjax.plot.group_fits import effects as effects
from bmrjax.plot.group_fits import subjects as subjects
from bmrjax.plot.input_maps import first_layer as first_layer
from bmrjax.plot.kept_by_layer import sparsity_per_layer as sparsity_per_layer
from bmrjax.plot.learning import learning_curves as learning_curves
from bmrjax.plot.paths import path as path
from bmrjax.plot.predicted_values import predictions as predictions
from bmrjax.plot.reliability import calibration as calibration
from bmrjax.plot.runs import coefficients as coefficients
from bmrjax.plot.runs import trade_off_curve as trade_off_curve
from bmrjax.plot.table_inputs import inputs as inputs
