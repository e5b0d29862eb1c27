"""What a run reports while it goes on: records, and callbacks that log them.

`sparsify` and `ensemble` take a list of callbacks. Each is called on the host with a read-only record when
the run starts, after every epoch, after every round, whenever a point is put on the path, and when the
run ends. All numbers of a record are on the host already; nothing here is traced.
"""

from bmrjax.callbacks.base import Callback as Callback
from bmrjax.callbacks.csv_log import CSV as CSV
from bmrjax.callbacks.json_lines import JSONLines as JSONLines
from bmrjax.callbacks.records import EpochEnd as EpochEnd
from bmrjax.callbacks.records import PointAdded as PointAdded
from bmrjax.callbacks.records import Record as Record
from bmrjax.callbacks.records import RoundEnd as RoundEnd
from bmrjax.callbacks.records import RunEnd as RunEnd
from bmrjax.callbacks.records import RunStart as RunStart
from bmrjax.callbacks.tensorboard import TensorBoard as TensorBoard
from bmrjax.callbacks.weights_and_biases import WeightsAndBiases as WeightsAndBiases
