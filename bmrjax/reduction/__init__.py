"""Closed-form evidence differences and reduced posteriors, one posterior family a file.

Pure functions of arrays: nothing here knows NumPyro, networks or training.
"""

from bmrjax.reduction.normal import Normal as Normal
from bmrjax.reduction.normal import normal as normal
from bmrjax.reduction.normal import spike as spike
