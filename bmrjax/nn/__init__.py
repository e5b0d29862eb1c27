"""Networks inside NumPyro programs, with random weights, and a small zoo."""

from typing import TYPE_CHECKING

import lazy_loader

from bmrjax.nn.foreign import timm_vit as timm_vit
from bmrjax.nn.foreign import torchvision_resnet as torchvision_resnet
from bmrjax.nn.foreign import torchvision_vgg as torchvision_vgg
from bmrjax.nn.gru import GRU as GRU
from bmrjax.nn.lenet import LeNet5 as LeNet5
from bmrjax.nn.lenet_caffe import LeNet5Caffe as LeNet5Caffe
from bmrjax.nn.mixer import MLPMixer as MLPMixer
from bmrjax.nn.mlp import MLP as MLP
from bmrjax.nn.multiplicative_noise import MultiplicativeNoise as MultiplicativeNoise
from bmrjax.nn.random_module import RandomModule as RandomModule
from bmrjax.nn.random_module import random_module as random_module
from bmrjax.nn.resnet import ResNet as ResNet
from bmrjax.nn.resnet import resnet18 as resnet18
from bmrjax.nn.resnet import resnet50 as resnet50
from bmrjax.nn.vgg import VGG as VGG
from bmrjax.nn.vit import ViT as ViT
from bmrjax.nn.weights import load_weights as load_weights
from bmrjax.nn.weights import save_weights as save_weights
from bmrjax.nn.with_noise import Noisy as Noisy
from bmrjax.nn.with_noise import with_noise as with_noise
from bmrjax.nn.with_noise import without_noise as without_noise

# Flax takes .7 s to load, which only those wait for who use it.
if TYPE_CHECKING:
    from bmrjax.nn.nnx_mlp import NNXMLP as NNXMLP
    from bmrjax.nn.nnx_multiplicative_noise import (
        NNXMultiplicativeNoise as NNXMultiplicativeNoise,
    )
    from bmrjax.nn.nnx_vit import NNXViT as NNXViT
else:
    __getattr__, _, _ = lazy_loader.attach(
        __name__,
        submod_attrs={
            "nnx_mlp": ["NNXMLP"],
            "nnx_multiplicative_noise": ["NNXMultiplicativeNoise"],
            "nnx_vit": ["NNXViT"],
        },
    )
