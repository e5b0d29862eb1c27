"""A residual network trained by PyTorch, and pruned by Torch-Pruning, in a process of its own.

Any Python that has torch and torch_pruning will do. Tensors have torchvision's names, so that `bmrjax.zoo`
reads them. Prints a line of JSON for each network, and progress between.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BATCH = 128
# Rounds in which Torch-Pruning goes from the whole network to a twentieth of its channels.
ROUNDS = 25
# Test rows by which the networks are checked to be those that bmrjax returned.
CHECKED = 500


class Block(nn.Module):
    """Two 3x3 convolutions with batch normalisation, and a skip around them."""

    def __init__(self, ins: int, between: int, out: int, stride: int, *, skip: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(ins, between, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(between)
        self.conv2 = nn.Conv2d(between, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if skip:
            conv = nn.Conv2d(ins, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        """Apply to a batch."""
        skip = x if self.downsample is None else self.downsample(x)
        if self.bn1.num_features:
            inner = self.conv2(F.relu(self.bn1(self.conv1(x))))
        else:  # nothing is left of the first convolution
            inner = torch.zeros_like(skip)
        return F.relu(self.bn2(inner) + skip)


class ResNet(nn.Module):
    """Three stages of blocks for 32x32 pixels, as He et al. (2016) have it in section 4.2.

    Args:
        stem: Channels of the first convolution.
        stages: For each block of each stage, the channels of its two convolutions and whether its skip has.
    """

    def __init__(self, stem: int, stages: list[list[tuple[int, int, bool]]]):
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        ins = stem
        for number, blocks in enumerate(stages, 1):
            parts = []
            for j, (between, out, skip) in enumerate(blocks):
                stride = 2 if number > 1 and not j else 1
                parts.append(Block(ins, between, out, stride, skip=skip))
                ins = out
            setattr(self, f"layer{number}", nn.Sequential(*parts))
        self.fc = nn.Linear(ins, 10)

    def forward(self, x: Any) -> Any:
        """Apply to a batch."""
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def whole(blocks: int, width: int) -> ResNet:
    """Return the network before anything is removed."""
    stages, ins = [], width
    for stage in range(3):
        out = width * 2**stage
        stages.append([(out, out, j == 0 and ins != out) for j in range(blocks)])
        ins = out
    return ResNet(width, stages)


def read(file: str) -> ResNet:
    """Return the network whose tensors a file has, with the widths that they have."""
    tensors = {name: torch.from_numpy(array) for name, array in np.load(file).items()}
    stages: list[list[tuple[int, int, bool]]] = []
    for stage in (1, 2, 3):
        blocks = []
        while f"layer{stage}.{len(blocks)}.conv1.weight" in tensors:
            name = f"layer{stage}.{len(blocks)}"
            between, out = (len(tensors[f"{name}.conv{i}.weight"]) for i in (1, 2))
            blocks.append((between, out, f"{name}.downsample.0.weight" in tensors))
        stages.append(blocks)
    network = ResNet(len(tensors["conv1.weight"]), stages)
    missing, unknown = network.load_state_dict(tensors, strict=False)
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")] + unknown
    if wrong:
        raise ValueError(f"{file}: {wrong} do not fit.")
    return network.eval()


def train(network: nn.Module, x: Any, y: Any, epochs: int, seed: int, rate: float = 0.1) -> None:
    """Train by SGD with momentum on one cycle of rates; images are shifted by up to 4 pixels and mirrored."""
    rng = np.random.default_rng(seed)
    steps = len(x) // BATCH
    optimizer = torch.optim.SGD(
        network.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    network.train()
    for epoch in range(epochs):
        begin, total = time.perf_counter(), 0.0
        for rows in rng.permutation(len(x))[: steps * BATCH].reshape(steps, BATCH):
            some = F.pad(x[rows], (4, 4, 4, 4))
            top, left = rng.integers(0, 9, 2)  # one shift a batch
            some = some[:, :, top : top + 32, left : left + 32]
            mirrored = torch.from_numpy(rng.random(BATCH) < 0.5)[:, None, None, None]
            some = torch.where(mirrored, some.flip(3), some)
            loss = F.cross_entropy(network(some), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cycle.step()
            total += loss.item()
        seconds = time.perf_counter() - begin
        print(f"epoch {epoch + 1}: loss {total / steps:.3f}, {seconds:.0f} s", flush=True)
    network.eval()


def scores(network: nn.Module, x: Any, y: Any) -> dict[str, float]:
    """Return accuracy and mean negative log likelihood."""
    network.eval()
    with torch.no_grad():
        logits = torch.cat([network(some) for some in x.split(500)])
    return {
        "accuracy": float((logits.argmax(1) == y).float().mean()),
        "nll": float(F.cross_entropy(logits, y)),
    }


def operations(network: nn.Module, x: Any) -> int:
    """Return the multiplications of convolutions and matrix products for one image."""
    count = 0

    def add(layer: Any, _: Any, out: Any) -> None:
        nonlocal count
        count += layer.weight[0].numel() * out[0].numel()

    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    with torch.no_grad():
        network(x[:1])
    for hook in hooks:
        hook.remove()
    return count


def measure_statistics(network: nn.Module, x: Any) -> None:
    """Replace the running statistics of batch normalisation by those of these rows."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over batches
    network.train()
    with torch.no_grad():
        for some in x.split(500):
            network(some)
    network.eval()


def pruned(dense: nn.Module, x: Any, y: Any, method: str, targets: list[float]) -> Iterator[tuple]:
    """Prune in rounds, and yield the network where it first has at most a share of the operations."""
    import torch_pruning

    name, _, ratios = method.partition(", ")
    importance = {
        "L1": torch_pruning.importance.GroupMagnitudeImportance(p=1),
        "group magnitude": torch_pruning.importance.GroupMagnitudeImportance(p=2),
        "group Taylor": torch_pruning.importance.GroupTaylorImportance(),
    }[name]
    begin, seconds = time.process_time(), 0.0
    network = copy.deepcopy(dense)
    pruner = torch_pruning.pruner.BasePruner(
        network, x[:1], importance, global_pruning=ratios == "global", pruning_ratio=0.95,
        iterative_steps=ROUNDS, ignored_layers=[network.fc],
    )  # fmt: skip
    every, left = operations(dense, x), sorted(targets, reverse=True)
    for _ in range(ROUNDS):
        if name == "group Taylor":
            network.zero_grad()
            for some, labels in zip(x.split(500), y.split(500), strict=True):
                (F.cross_entropy(network(some), labels, reduction="sum") / len(x)).backward()
        pruner.step()
        share = operations(network, x) / every
        while left and share <= left[0]:
            seconds += time.process_time() - begin
            yield left.pop(0), share, network, seconds
            begin = time.process_time()  # what the caller did is not counted


def report(
    about: dict[str, Any], network: nn.Module, data: dict[str, Any], tune: int, seed: int
) -> None:
    """Print what a network predicts: as it is, with statistics anew, and after more training."""
    test = data["test_x"], data["test_y"]
    about = about | {"parameters": sum(p.numel() for p in network.parameters())}

    def say(after: str, found: nn.Module) -> None:
        few = scores(found, test[0][:CHECKED], test[1][:CHECKED])["nll"]
        print(
            json.dumps(about | {"after": after, "nll_of_few": few} | scores(found, *test)),
            flush=True,
        )

    say("", network)
    anew = copy.deepcopy(network)
    measure_statistics(anew, data["calibrate_x"])
    say("statistics anew", anew)
    if tune:
        tuned = copy.deepcopy(anew)
        for norm in [m for m in tuned.modules() if isinstance(m, nn.BatchNorm2d)]:
            norm.momentum = 0.1
        train(tuned, data["train_x"], data["train_y"], tune, seed, rate=0.01)
        say(f"{tune} {'pass' if tune == 1 else 'passes'}", tuned)


def main() -> None:
    """Train a network, or prune one, or report on some."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["train", "prune", "report"])
    parser.add_argument(
        "--data", help="file of arrays: train, calibrate and test, images and labels"
    )
    parser.add_argument("--weights", nargs="+", help="files of tensors")
    parser.add_argument("--names", nargs="*", help="of the networks, for reports")
    parser.add_argument("--blocks", type=int, help="in each stage")
    parser.add_argument("--width", type=int, help="channels of the first stage")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--tune", type=int, default=0, help="passes over the data after pruning")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--flops", type=float, nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    data = {name: torch.from_numpy(array) for name, array in np.load(args.data).items()}
    x, y = data["calibrate_x"], data["calibrate_y"]
    if args.task == "train":
        network = whole(args.blocks, args.width)
        train(network, data["train_x"], data["train_y"], args.epochs, args.seed)
        tensors = {name: t.contiguous().numpy() for name, t in network.state_dict().items()}
        np.savez(args.weights[0], **tensors)
        return
    dense = read(args.weights[0])
    if args.task == "report":
        for name, file in zip(args.names, args.weights, strict=True):
            network = read(file)
            share = operations(network, x) / operations(dense, x)
            about = {"method": name, "flops": share}
            report(about, network, data, args.tune, args.seed)
        return
    for method in args.methods:
        for target, share, network, seconds in pruned(dense, x, y, method, args.flops):
            about = {"method": method, "target": target, "flops": share, "cpu_s": seconds}
            report(about, network, data, args.tune, args.seed)


if __name__ == "__main__":
    main()
