"""Reduction of posteriors that need not fit into memory: a folder in, a folder of masks out."""

from bmrjax.streaming.layer_report import LayerReport as LayerReport
from bmrjax.streaming.layer_report import Reduced as Reduced
from bmrjax.streaming.reduce import reduce_folder as reduce_folder
