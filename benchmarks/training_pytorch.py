"""The PyTorch contender of benchmarks/training.py. Its interpreter needs PyTorch, but not ffn.

  python benchmarks/training_pytorch.py DEPTH BATCH THREADS FEATURES FOV

Reads numbers of steps from standard input, one per line, trains that many and prints the seconds as JSON. Convolutions
compute in bfloat16 (autocast) with channels last, the fastest way of PyTorch on CPUs with AMX.
"""

from __future__ import annotations

import json
import sys
import time

import torch


class Network(torch.nn.Module):
    """The flood-filling network, as ffn/model/network.py describes it."""

    def __init__(self, depth: int, features: int) -> None:
        super().__init__()
        sizes = [(2, features)] + [(features, features)] * (2 * depth - 1)
        self.convs = torch.nn.ModuleList(torch.nn.Conv3d(*size, 3, padding=1) for size in sizes)
        self.last = torch.nn.Conv3d(features, 1, 1)

    def forward(self, image: torch.Tensor, pom_logit: torch.Tensor) -> torch.Tensor:
        """Return the updated POM."""
        relu = torch.nn.functional.relu
        inputs = torch.cat([image, pom_logit], 1).contiguous(memory_format=torch.channels_last_3d)
        net = self.convs[1](relu(self.convs[0](inputs)))
        for first, second in zip(self.convs[2::2], self.convs[3::2], strict=True):
            net = net + second(relu(first(relu(net))))
        return pom_logit + self.last(relu(net))


def main() -> None:
    """Train as standard input asks."""
    depth, batch, threads, features, fov = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = Network(depth, features).to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.Adam(network.parameters(), 1e-4, fused=True)
    image, pom, labels = (torch.randn(batch, 1, fov, fov, fov) for _ in range(3))
    labels = (labels > 0).float()

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            updated = network(image, pom)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(updated.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
