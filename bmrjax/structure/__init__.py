"""Networks as graphs of units, and `compact`, which makes them smaller."""

from bmrjax.structure.compact import Compact as Compact
from bmrjax.structure.compact import Resized as Resized
from bmrjax.structure.compact import compact as compact
from bmrjax.structure.cost import Cost as Cost
from bmrjax.structure.cost import Latency as Latency
from bmrjax.structure.inference import compile_fastest as compile_fastest
from bmrjax.structure.named_units import UnitGroups as UnitGroups
from bmrjax.structure.named_units import UnitKind as UnitKind
from bmrjax.structure.network_arrays import named_arrays as named_arrays
from bmrjax.structure.select import SelectInputs as SelectInputs
from bmrjax.structure.sizes import sizes_of as sizes_of
from bmrjax.structure.unit_groups import unit_groups as unit_groups
