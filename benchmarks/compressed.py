"""Measure what compressed gradients cost in F1, and save in bits: the same training with each compression.

    ffn run phantoms.yaml records_all
    python benchmarks/compressed.py --records results/phantoms/records --volume a=raw.zarr,labels.zarr \
        --validate a=raw.zarr,labels.zarr,88:128,0:128,0:128 --out compression --depth 3 --features 16 \
        --virtual-workers 4 --max-steps 600 --validation-steps 100

Takes the options of `ffn train`. Every run leaves its scores in OUT, where the same command goes on; the table and the
figure have the means over the seeds. Bits are those of the message of one worker in a step. For QSGD, *coded* is what
Elias codes would take (`coded_bits`), the mean over all messages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from ffn.config import ModelConfig
from ffn.io import atomic
from ffn.model.network import num_weights, weight_shapes
from ffn.options import add_options, from_arguments
from ffn.studies.pages import Line, Panel, draw
from ffn.training.config import TrainConfig
from ffn.training.metrics import read_metrics
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import Training, add_data_arguments, training_data
from ffn.training.step import make_exchange
from ffn.training.train import train

if TYPE_CHECKING:
    import tensorflow as tf

KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "powersgd": {"compression": "powersgd"},
    "1-bit": {"compression": "1-bit"},
    "qsgd, 1 level": {"compression": "qsgd", "qsgd_levels": 1},
    "qsgd, 7 levels": {"compression": "qsgd", "qsgd_levels": 7},
    "bfloat16": {"compression": "bfloat16"},
}


class Pair(ProcessGroup):
    """Two processes: each sends its message once."""

    size = 2


def main() -> None:
    """Train what is missing, then print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="scores, models and the figure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="random seeds (default: 1 2)")
    add_options(parser, ModelConfig)
    add_options(parser, TrainConfig)
    arguments = parser.parse_args()
    data, model = training_data(arguments, arguments.validate), from_arguments(ModelConfig, arguments)
    options = from_arguments(TrainConfig, arguments)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in KINDS}
    for seed in arguments.seeds:
        for name, kind in KINDS.items():
            path = arguments.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}.json"
            if not path.exists():
                training = Training(data, model, options.model_copy(update={"num_workers": 1, **kind}), seed)
                atomic.write_json(path, trained(training, path.with_suffix("")))
            runs[name].append(json.loads(path.read_text()))
            print(path.stem, runs[name][-1]["f1"][-1], flush=True)
    print(f"\n{num_weights(model)} weights\n{'':18} {'bits a weight':>13} {'coded':>6} {'F1 at the end':>13}")
    for name, of_name in runs.items():
        bits, coded = (np.mean([run[key] for run in of_name]) / num_weights(model) for key in ("bits", "coded"))
        ends = [run["f1"][-1] for run in of_name]
        print(f"{name:18} {bits:13.2f} {coded:6.2f} {np.mean(ends):13.3f} {ends}")
    draw(panels(runs)).savefig(arguments.out / "compression.png", dpi=150)


def trained(training: Training, folder: Path) -> dict[str, Any]:
    """Train; return the validation F1 over steps, and the bits of a worker's message."""
    one = training.config.model_copy(update={"virtual_workers": 1})
    sent = 8 * make_exchange(one, list(weight_shapes(training.model).values()), Pair(), 1).bytes_sent
    with counted() as counts:
        train(training, str(folder))
    rows = read_metrics(folder / "validation.csv")
    scores = {key: [float(row[key]) for row in rows] for key in ("step", "f1")}
    return {**scores, "bits": sent, "coded": float(np.mean(counts)) if counts else sent}


def coded_bits(levels: np.ndarray, num_levels: int) -> int:
    """Return the bits of a message of QSGD if only entries that are not 0 were sent: distances, levels, signs, norms.

    Distances and levels (if there are several) as Elias's gamma code, which takes 2 ⌊log₂ n⌋ + 1 bits for n.
    """
    from ffn.training.parallel.compression import BUCKET

    places = np.flatnonzero(levels)
    numbers = np.diff(places, prepend=-1)
    if num_levels > 1:
        numbers = np.concatenate([numbers, np.abs(levels[places])])
    return int(2 * np.floor(np.log2(numbers)).sum()) + numbers.size + places.size + 32 * -(-len(levels) // BUCKET)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the coded bits of all messages of QSGD in a ``with`` block."""
    import tensorflow as tf  # loads slowly

    from ffn.training.parallel.compression import Qsgd

    counts: list[int] = []
    encode = Qsgd.encode

    def encode_and_count(codec: Qsgd, gradient: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        payload = encode(codec, gradient, number)
        tf.py_function(
            lambda levels: counts.append(coded_bits(levels.numpy(), codec.num_levels)), [codec.levels(payload)], []
        )
        return payload

    with mock.patch.object(Qsgd, "encode", encode_and_count):
        yield counts


def panels(runs: dict[str, list[dict[str, Any]]]) -> list[Panel]:
    """Draw F1 over steps and over bits."""
    over_steps, over_bits = list[Line](), list[Line]()
    for number, (name, of_name) in enumerate(runs.items()):
        steps, f1 = np.array(of_name[0]["step"][1:]), np.mean([run["f1"][1:] for run in of_name], 0)
        over_steps.append(Line(steps, f1, colour=number))
        coded = np.mean([run["coded"] for run in of_name])
        label = f"{name}, coded" if name.startswith("qsgd") else name
        over_bits.append(Line(steps * coded / 8e6, f1, label, colour=number))
    return [
        Panel(over_steps, "steps", "validation F1"),
        Panel(over_bits, "MB sent by a worker", "validation F1", {"xscale": "log"}, legend=""),
    ]


if __name__ == "__main__":
    main()
