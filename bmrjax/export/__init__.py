"""Networks for other programs: StableHLO and ONNX files, checked against the network when they are written.

`stablehlo` writes a program that JAX, and what runs its serialized programs, can load without the code of the
network; `load_stablehlo` reads it. `onnx` writes a graph for ONNX Runtime and its like, with weights of eight
bits where that is asked for and does no harm.
"""

from bmrjax.export.eight_bits import Int8 as Int8
from bmrjax.export.export_report import ExportedArray as ExportedArray
from bmrjax.export.export_report import ExportReport as ExportReport
from bmrjax.export.onnx_file import onnx as onnx
from bmrjax.export.stablehlo_file import load_stablehlo as load_stablehlo
from bmrjax.export.stablehlo_file import stablehlo as stablehlo
