"""Networks inside NumPyro programs: lifting, and a small zoo."""

from bmrjax.nn.gru import GRU as GRU
from bmrjax.nn.lenet import LeNet5 as LeNet5
from bmrjax.nn.lift import Lifted as Lifted
from bmrjax.nn.lift import lift as lift
from bmrjax.nn.mixer import MLPMixer as MLPMixer
from bmrjax.nn.mlp import MLP as MLP
from bmrjax.nn.nnx_mlp import NNXMLP as NNXMLP
from bmrjax.nn.nnx_vit import NNXViT as NNXViT
from bmrjax.nn.vit import ViT as ViT
