"""Process groups: ranks from launchers, refused separate jobs, settings, sums, errors of other processes."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from ffn.errors import DivergenceError, TrainError, VolumeError
from ffn.training.parallel.joining import HorovodGroup, MpiGroup, peer_failures_explained, process_group
from ffn.training.parallel.process_group import ProcessGroup, encode, whole_branches

pytestmark = pytest.mark.usefixtures("no_launcher")


def test_one_process_needs_no_horovod(monkeypatch):
    with process_group(1, 120) as group:
        assert type(group) is ProcessGroup
        assert (group.size, group.gather("a"), group.broadcast("b")) == (1, ["a"], "b")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    with process_group(1, 120) as group:
        assert type(group) is ProcessGroup


class Alone:
    """Horovod that sees no other process."""

    rank = size = local_rank = local_size = mpi_enabled = staticmethod(lambda: 1)


@pytest.mark.parametrize(
    ("variables", "started"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 2),
        ({"ALPS_APP_PE": "1"}, 2),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 4])
def test_separate_jobs_of_one_launcher_are_refused(monkeypatch, variables, started, num_workers):
    monkeypatch.setattr("ffn.training.parallel.joining.start_horovod", lambda *_: Alone())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainError, match=f"at least {started} .*Horovod"), process_group(num_workers, 120):
        pass


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Horovod has been shut down. [Op:HorovodAllgather]",
            "rank 1: stopped because another process of the job has ended or hangs",
        ),
        ("Failed to get convolution algorithm: cuDNN failed to initialize", "cuDNN failed to initialize"),
    ],
)
def test_only_failures_of_other_processes_are_reported_as_such(message, expected):
    pytest.importorskip("horovod")
    import tensorflow as tf

    horovod = Alone()
    with pytest.raises((TrainError, tf.errors.UnknownError), match=expected):
        with peer_failures_explained(HorovodGroup(horovod, 120)):
            raise tf.errors.UnknownError(None, None, message)


def test_an_error_of_any_process_ends_all_with_its_message(run_processes):
    def fail_on_rank_1(group):
        if group.rank == 1:
            raise VolumeError("b.h5: no such file")
        return group.rank

    failed = run_processes(3, lambda group: group.together(lambda: fail_on_rank_1(group)))
    assert [str(error).startswith("b.h5: ") for error in failed] == [True] * 3
    assert run_processes(3, lambda group: group.together(lambda: group.rank)) == [0, 1, 2]


class Exchange(Alone):
    """Horovod in which process 1 has sent an item."""

    rank, size = staticmethod(lambda: 0), staticmethod(lambda: 2)

    def __init__(self, item):
        self.message = encode(item)

    def allgather(self, tensor, name):
        return tf.concat([tensor, np.frombuffer(self.message, np.uint8)], 0)


def test_items_pass_over_horovod_and_errors_keep_their_class():
    group = HorovodGroup(Exchange("b"), 120)
    assert group.gather("a") == ["a", "b"] and group.broadcast({"b": [1, 2]}) == {"b": [1, 2]}
    with pytest.raises(DivergenceError, match="^x$"):
        HorovodGroup(Exchange(("DivergenceError", "x")), 120).together(lambda: None)


class Exchanging:
    """Horovod whose processes are threads; its allreduce adds in an order of its own."""

    Sum = "sum"

    def __init__(self, group):
        self._group = group
        self.rank = self.local_rank = lambda: group.rank
        self.size = self.local_size = lambda: group.size

    def allreduce(self, vector, op, name):
        return sum(self._group.exchanged(vector)[::-1])

    def alltoall(self, tensor, name):
        return tf.concat([sent[self._group.rank : self._group.rank + 1] for sent in self._group.exchanged(tensor)], 0)

    def allgather(self, tensor, name):
        return tf.concat(self._group.exchanged(tensor), 0)


class Done:
    """An exchange that has ended."""

    def Test(self):
        return True


class Communicating:
    """MPI whose processes are threads."""

    def __init__(self, group):
        self._group = group
        self.Get_rank, self.Get_size = lambda: group.rank, lambda: group.size

    def Ialltoall(self, sent, received):
        shares = [np.split(each, self._group.size)[self._group.rank] for each in self._group.exchanged(sent)]
        received[:] = np.concatenate(shares)
        return Done()

    def Iallreduce(self, sent, received):
        received[:] = sum(self._group.exchanged(sent))
        return Done()

    def Iallgather(self, sent, received):
        received[:] = np.concatenate(self._group.exchanged(sent))
        return Done()

    def Iallgatherv(self, sent, received):
        room, lengths = received
        parts = self._group.exchanged(sent)
        assert [len(part) for part in parts] == lengths.tolist()
        room[:] = np.concatenate(parts)
        return Done()


def over_horovod(group):
    return HorovodGroup(Exchanging(group), 60)


def over_mpi(group):
    return MpiGroup(Communicating(group), Communicating(group), 60)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("over", [over_horovod, over_mpi])
@pytest.mark.parametrize("size", [2, 3, 4, 6, 12])
def test_a_total_has_the_same_bits_for_any_number_of_processes(run_processes, size, over, dtype):
    vectors = np.random.default_rng(0).normal(size=(12, 101)).astype(dtype)
    share = 12 // size

    def total(group):
        mine = vectors[group.rank * share : (group.rank + 1) * share]
        return over(group).total(whole_branches(list(map(tf.constant, mine)))).numpy()

    alone = ProcessGroup().total(whole_branches(list(map(tf.constant, vectors)))).numpy()
    np.testing.assert_allclose(alone, vectors.sum(axis=0), rtol=1e-5, atol=1e-5 if dtype == np.float32 else 0.02)
    for found in run_processes(size, total):
        np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("over", [over_horovod, over_mpi])
def test_the_allreduce_of_a_library_sums_without_an_order(run_processes, over):
    vectors = np.random.default_rng(0).normal(size=(3, 101)).astype(np.float32)
    for found in run_processes(3, lambda group: over(group).allreduce(tf.constant(vectors[group.rank]))):
        np.testing.assert_allclose(found, vectors.sum(axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("collective", "module", "named"),
    [("horovod", "horovod.tensorflow", "train.collective: Horovod"), ("mpi", "mpi4py", "train.collective: mpi4py")],
)
def test_a_missing_library_is_named(monkeypatch, collective, module, named):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TrainError, match=named), process_group(2, 120, collective=collective):
        pass
