"""Group studies: parametric empirical Bayes over subjects whose fits are finished."""

from bmrjax.group.group_fit import GroupFit as GroupFit
from bmrjax.group.leave_one_out import LeaveOneOut as LeaveOneOut
from bmrjax.group.peb import peb as peb
