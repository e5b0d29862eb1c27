"""Networks as small files: quantised, entropy-coded, and safe to decode."""

from bmrjax.codec.array_records import ArrayRow as ArrayRow
from bmrjax.codec.codec_error import CodecError as CodecError
from bmrjax.codec.file_report import FileReport as FileReport
from bmrjax.codec.known_classes import register as register
from bmrjax.codec.layouts import CSR as CSR
from bmrjax.codec.layouts import Bitmap as Bitmap
from bmrjax.codec.layouts import Dense as Dense
from bmrjax.codec.layouts import Gaps as Gaps
from bmrjax.codec.learned_mixture import learned_mixture as learned_mixture
from bmrjax.codec.network import decode as decode
from bmrjax.codec.network import encode as encode
from bmrjax.codec.network import inspect_file as inspect_file
from bmrjax.codec.network_files import load_network as load_network
from bmrjax.codec.network_files import save_network as save_network
from bmrjax.codec.quantise import KMeans as KMeans
from bmrjax.codec.quantise import Mixture as Mixture
from bmrjax.codec.quantise import Quantiser as Quantiser
from bmrjax.codec.quantise import Uniform as Uniform
from bmrjax.codec.rate_distortion import RateDistortion as RateDistortion
from bmrjax.codec.relative_entropy import RelativeEntropy as RelativeEntropy
from bmrjax.codec.scales import posterior_scales as posterior_scales
