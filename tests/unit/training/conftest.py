"""Fixtures for tests of training: the processes of a job as threads, records and a volume on disk."""

import queue
import threading

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.training.data.volumes import TrainingVolume, open_training_volumes
from ffn.training.parallel.process_group import ProcessGroup, decode, encode, pairwise_sum
from ffn.training.plan import TrainingData
from ffn.training.step import WEIGHTS_PREFIX, Batch
from ffn.training.validation import ValidationBox

from ...training_records import write_shards
from ...volumes import write_volume

VOLUME_BOX = Box((0, 0, 3), (12, 16, 23))
IMAGE_BOX = Box((2, 0, 4), (14, 20, 34))
LABELS_BOX = Box((4, 1, 5), (14, 20, 34))
ENDED = object()


def make_batch(number=0, size=2):
    """FOVs of 3 x 5 x 7 voxels in which bright voxels are the object."""
    rng = np.random.default_rng(number)
    image, pom_logit = rng.normal(size=(2, size, 3, 5, 7)).astype(np.float32)
    labels = np.where(image > 0.3, np.float32(0.95), np.float32(0.05))
    loss_weight = (rng.random(image.shape) > 0.1).astype(np.float32)
    return Batch(image, pom_logit - 2, labels, loss_weight)


def weights_of(learner):
    """The current weights by name, without their moving average."""
    return {
        name.removeprefix(WEIGHTS_PREFIX): array
        for name, array in learner.state().items()
        if name.startswith(WEIGHTS_PREFIX)
    }


class Clock:
    """A clock that the test moves."""

    time = 0.0

    def __call__(self):
        return self.time


class ThreadGroup(ProcessGroup):
    """One process of a job, played by a thread. It sends an item to process `r` through ``mailboxes[rank][r]``."""

    def __init__(self, rank, mailboxes):
        self.rank, self.size = rank, len(mailboxes)
        self._mailboxes = mailboxes

    def gather(self, item):
        return [decode(message) for message in self.exchanged(encode(item))]

    def exchanged(self, item):
        self.send(item)
        items = [mailboxes[self.rank].get() for mailboxes in self._mailboxes]
        if any(item is ENDED for item in items):
            raise RuntimeError("another process has ended")
        return items

    def broadcast(self, item):
        return self.gather(item)[0]

    def total(self, rows):
        import tensorflow as tf

        return pairwise_sum(tf.concat(self.exchanged(rows), 0))

    def concatenate(self, part):
        import tensorflow as tf

        return tf.concat(self.exchanged(part), 0)

    def send(self, item):
        for mailbox in self._mailboxes[self.rank]:
            mailbox.put(item)


@pytest.fixture(scope="session")
def run_processes():
    """Function that calls `action` with the group of each of `size` processes; returns results or errors by rank."""

    def run(size, action):
        mailboxes = [[queue.Queue() for _ in range(size)] for _ in range(size)]
        groups = [ThreadGroup(rank, mailboxes) for rank in range(size)]
        results = [None] * size

        def target(group):
            try:
                results[group.rank] = action(group)
            except (Exception, SystemExit) as error:
                results[group.rank] = error
            group.send(ENDED)

        threads = [threading.Thread(target=target, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


@pytest.fixture
def image():
    """Grey levels of a volume over `VOLUME_BOX`."""
    return np.random.default_rng(1).integers(0, 255, VOLUME_BOX.shape).astype(np.uint8)


@pytest.fixture
def make_volume(tmp_path):
    """Function that writes an image, and labels of a single object, and returns what `TrainingData` calls volumes."""

    def make(image):
        specs = (f"{tmp_path}/raw.h5:raw", f"{tmp_path}/labels.h5:labels")
        for spec, voxels in zip(specs, (image, np.ones(image.shape, np.uint64)), strict=True):
            write_volume(spec, voxels, Placement(VOLUME_BOX))
        return {"a": specs}

    return make


@pytest.fixture
def make_records(tmp_path):
    """Function that writes records of one voxel of a volume in shards of `counts` records, and returns their folder."""

    def make(name, volume="a", counts=(3, 2), last=(6, 8, 13)):
        write_shards(tmp_path / name, [*[(6, 8, 13)] * (sum(counts) - 1), last], counts, volume)
        return f"{tmp_path}/{name}"

    return make


@pytest.fixture
def data(image, make_volume, make_records):
    """Five records of the volume with `image`."""
    return TrainingData(make_records("records"), make_volume(image))


@pytest.fixture
def validation_boxes(tmp_path):
    """Validation boxes in two volumes of noise with one object each, which is small in the second volume."""
    volume_box, box = Box.parse("10:30,0:24,5:45"), Box.parse("12:28,2:20,10:40")
    specs, placement = {}, Placement(volume_box, (10.0, 10.0, 10.0))
    for number, name in enumerate("ab"):
        rng = np.random.default_rng(number)
        labels = np.zeros(volume_box.shape, np.uint64)
        labels[:, 8 : 16 - 7 * number, 12:30] = 7
        image = rng.integers(0, 255, volume_box.shape).astype(np.uint8)
        specs[name] = tuple(
            write_volume(f"{tmp_path}/{name}-{dataset}.h5:{dataset}", voxels, placement)
            for dataset, voxels in (("raw", image), ("labels", labels))
        )
    with open_training_volumes(specs) as opened:
        yield {name: ValidationBox(volume, box) for name, volume in opened.items()}


@pytest.fixture
def volume(tmp_path):
    """Image over `IMAGE_BOX`, labels 0, 1, 2 in slabs of x over the smaller `LABELS_BOX`."""
    image = np.random.default_rng(5).integers(0, 255, IMAGE_BOX.shape).astype(np.uint8)
    labels = np.zeros(LABELS_BOX.shape, np.uint64)
    labels[..., 5:15], labels[..., 15:] = 1, 2
    raw, truth = (
        write_volume(f"{tmp_path}/v.{name}.h5:{name}", voxels, Placement(box, (30.0, 8.0, 8.0)))
        for name, box, voxels in (("raw", IMAGE_BOX, image), ("labels", LABELS_BOX, labels))
    )
    with open_volume(raw) as raw, open_volume(truth) as truth:
        yield TrainingVolume("v", raw, truth)
