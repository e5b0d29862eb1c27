"""Networks as graphs of units, and `compact`, which makes them smaller."""

from typing import TYPE_CHECKING

import lazy_loader

from bmrjax.structure.compact import Compact as Compact
from bmrjax.structure.compact import Resized as Resized
from bmrjax.structure.compact import compact as compact
from bmrjax.structure.cost import Cost as Cost
from bmrjax.structure.cost import Latency as Latency
from bmrjax.structure.inference import compile_fastest as compile_fastest
from bmrjax.structure.named_units import UnitGroups as UnitGroups
from bmrjax.structure.named_units import UnitKind as UnitKind
from bmrjax.structure.network_arrays import named_arrays as named_arrays
from bmrjax.structure.sizes import sizes_of as sizes_of
from bmrjax.structure.unit_groups import unit_groups as unit_groups

# Equinox takes as long to load as all that a program without a network needs of this library.
if TYPE_CHECKING:
    from bmrjax.structure.select import SelectInputs as SelectInputs
else:
    __getattr__, _, _ = lazy_loader.attach(__name__, submod_attrs={"select": ["SelectInputs"]})
