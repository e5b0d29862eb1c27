"""PyTorch's steps for `speed.py`, in a process of its own: any Python that has torch will do.

Says in JSON what it has, then takes steps as ordered on its standard input: ``NAME N``, a line an
order, and a line back when they are done.
"""

import argparse
import json
import sys
import time
from typing import Any

import torch
from torch import nn


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation, and a skip around them."""

    def __init__(self, ins: int, out: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(ins, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip = nn.Sequential(
                nn.Conv2d(ins, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Any) -> Any:
        """Apply to a batch."""
        return torch.relu(self.body(x) + self.skip(x))


def perceptron(*hidden: int) -> nn.Module:
    """Return a perceptron with swish."""
    sizes, parts = [784, *hidden], []
    for i, o in zip(sizes[:-1], sizes[1:], strict=True):
        parts += [nn.Linear(i, o), nn.SiLU()]
    return nn.Sequential(nn.Flatten(), *parts, nn.Linear(sizes[-1], 10))


def lenet5() -> nn.Module:
    """Return LeNet-5 on 28x28 pixels."""
    parts = []
    for i, o, padding in ((1, 6, 2), (6, 16, 0)):
        parts += [nn.Conv2d(i, o, 5, padding=padding), nn.Tanh(), nn.AvgPool2d(2)]
    parts += [nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))


def resnet18() -> nn.Module:
    """Return ResNet-18 with the stem for small images."""
    parts, ins = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for stage, out in enumerate((64, 128, 256, 512)):
        parts += [Residual(ins, out, 2 if stage else 1), Residual(out, out, 1)]
        ins = out
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


NETWORKS = {
    "lenet5": lenet5,
    "mlp": lambda: perceptron(100, 100),
    "mlp400": lambda: perceptron(*[400] * 5),
    "resnet18": resnet18,
}


class Steps:
    """Plain steps, or mean-field ones: one draw from N(loc, scale²) a step, under a N(0, 1) prior."""

    def __init__(self, module: nn.Module, data: Any, batch: int, *, mean_field: bool):
        self.module, self.data, self.batch = module, data, batch
        self.loc = {k: p.detach().clone().requires_grad_() for k, p in module.named_parameters()}
        self.log_scale = {
            k: torch.full_like(p, -5.0).requires_grad_() for k, p in self.loc.items() if mean_field
        }
        leaves = [*self.loc.values(), *self.log_scale.values()]
        # As large a state as AdaBelief's.
        self.optimizer = torch.optim.Adam(leaves, lr=1e-3, fused=True)

    def loss(self, x: Any, y: Any) -> Any:
        """Return the cross entropy, or the negative ELBO."""
        values, divergence, scaled = dict(self.loc), 0.0, 1
        for key, log_scale in self.log_scale.items():
            loc, scale = self.loc[key], log_scale.exp()
            values[key] = loc + scale * torch.randn_like(loc)
            divergence = divergence + 0.5 * (loc**2 + scale**2 - 1).sum() - log_scale.sum()
            scaled = len(self.data[0])
        logits = torch.func.functional_call(self.module, values, (x,))
        return scaled * nn.functional.cross_entropy(logits, y) + divergence

    def take(self, n: int) -> None:
        """Take n steps and wait for them."""
        x, y = self.data
        for i in range(n):
            at = (i * self.batch) % (len(x) - self.batch + 1)
            self.optimizer.zero_grad()
            self.loss(x[at : at + self.batch], y[at : at + self.batch]).backward()
            self.optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()


def main() -> None:
    """Build the steps, say what there is, and obey."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--shape", type=int, nargs="+")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(args.rows, *args.shape, device=device)
    y = torch.randint(0, 10, (args.rows,), device=device)
    found, sides = {}, {}
    for kind in ("deterministic", "mean-field"):
        module = NETWORKS[args.name]().to(device)
        sides[kind] = Steps(module, (x, y), args.batch, mean_field=kind == "mean-field")
        begin = time.perf_counter()
        sides[kind].take(1)
        found[kind] = {"driver": "eager", "compile_seconds": time.perf_counter() - begin}
    count = sum(p.numel() for p in sides["deterministic"].loc.values())
    described = {
        "version": torch.__version__,
        "parameters": count,
        "device": device,
        "sides": found,
    }
    print(json.dumps(described), flush=True)
    for line in sys.stdin:
        kind, n = line.split()
        sides[kind].take(int(n))
        print("done", flush=True)


if __name__ == "__main__":
    main()
