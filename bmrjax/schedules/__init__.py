"""When to reduce, how much at once, and whether to take it back.

A schedule is called before every epoch. It sees how the fit went and answers with one action: `Train`,
`Reduce`, `Restore`, `Regrow` or `Stop`.
Its own memory is a dict of JSON values, so a run can stop and go on. All host-side: nothing here
is traced.
"""

from bmrjax.schedules.actions import Action as Action
from bmrjax.schedules.actions import Reduce as Reduce
from bmrjax.schedules.actions import Regrow as Regrow
from bmrjax.schedules.actions import Restore as Restore
from bmrjax.schedules.actions import Stop as Stop
from bmrjax.schedules.actions import Train as Train
from bmrjax.schedules.base import Judge as Judge
from bmrjax.schedules.base import Memory as Memory
from bmrjax.schedules.base import Report as Report
from bmrjax.schedules.base import Schedule as Schedule
from bmrjax.schedules.every import Every as Every
from bmrjax.schedules.iterative import Iterative as Iterative
from bmrjax.schedules.verified import Verified as Verified
from bmrjax.schedules.when_converged import WhenConverged as WhenConverged
