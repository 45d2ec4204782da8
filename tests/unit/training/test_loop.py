"""The loop of one process: its ends, counts, checkpoints, validations and reports."""

import contextlib
import json
import shlex
import sys

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import DivergenceError, TrainError
from ffn.model.network import weight_shapes
from ffn.model.store import Model
from ffn.training.config import TrainConfig
from ffn.training.data.examples import RecordTable
from ffn.training.loop import MAX_SKIPPED_IN_ROW, Interruption, Trainer
from ffn.training.metrics import (
    COLUMNS,
    F1_OF_SIZES,
    PARTS_OF_STEP,
    VALIDATION_COLUMNS,
    Report,
    RowCommand,
    load_best,
    read_metrics,
)
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import TrainingPlan
from ffn.training.step import Outcome
from ffn.training.walk import NUM_COUNTS

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1), image_mean=0, image_stddev=1)
COUNTS = [2, 1, 4, 1]  # of a step
TIMES = {"seconds", "fovs_per_second", "validation_seconds", *PARTS_OF_STEP}


class Walks:
    """Walks of one step each."""

    def __init__(self):
        self.positions = {0: 0, 1: 0}
        self.counts = np.zeros(NUM_COUNTS, np.int64)

    def batch(self):
        return None

    def proceed(self, answers):
        self.positions = {lane: position + 1 for lane, position in self.positions.items()}
        self.counts = self.counts + np.array(COUNTS) * np.isfinite(answers).all()

    def take_counts(self):
        counts, self.counts = self.counts, np.zeros(NUM_COUNTS, np.int64)
        return counts

    def states(self, with_walks):
        counts = {0: self.counts, 1: np.zeros(NUM_COUNTS, np.int64)}
        return {lane: {"position": np.array(at), "counts": counts[lane]} for lane, at in self.positions.items()}

    def restore(self, states):
        self.positions = {lane: int(state["position"]) for lane, state in states.items()}
        self.counts = sum(state["counts"] for state in states.values())


class Learner:
    """Has a broken gradient in some steps, and learns in others that another process asks to stop or to save."""

    def __init__(self, broken=(), stops=(), saves=()):
        self.rates = []
        self.wishes = []
        self.is_averaged = False
        self._broken, self._stops, self._saves = set(broken), set(stops), set(saves)
        self.saves_wanted = []

    def step(self, batch, learning_rate, stop, save):
        assert not self.is_averaged
        self.rates.append(learning_rate)
        self.wishes.append(stop)
        self.saves_wanted.append(save)
        number = len(self.rates)
        finite = number not in self._broken
        loss = 0.5 if finite else float("nan")
        stops, saves = stop or number in self._stops, save or number in self._saves
        return Outcome(np.full((2, 3, 3, 3), loss, np.float32), loss, finite, stops, 1.5, 0.01, 0.002, 40, saves)

    @contextlib.contextmanager
    def averaged(self):
        self.is_averaged = True
        yield
        self.is_averaged = False

    def forward(self, batch):
        raise AssertionError("the fake validation does not call this")

    def averaged_weights(self):
        return {name: np.full(shape, len(self.rates), np.float32) for name, shape in weight_shapes(MODEL).items()}

    def state(self):
        return {"weights/a": np.array([len(self.rates)])}

    def worker_states(self):
        return [{"left_out": np.zeros(3)}]

    def restore(self, state, worker_states):
        np.testing.assert_equal(worker_states, self.worker_states())
        self.rates = [0.0] * int(state["weights/a"][0])


class Validation:
    """Scores that rise up to step 20 and then fall."""

    def __init__(self, digest=b"of these examples"):
        self.digest = digest
        self.steps = []

    def run(self, forward, step):
        self.steps.append(step)
        scores = dict.fromkeys(("loss", "accuracy", "precision", "recall", *F1_OF_SIZES), 0.5)
        scores |= {"step": step, "examples": 1, "fovs": 2, "f1": 0.9 - abs(step - 20) / 100}
        return {**scores, "validation_seconds": 3.0}


class NotTheFirst(ProcessGroup):
    """A process that reports nothing."""

    rank = 1


class Saved(list):
    """Checkpoints in memory."""

    save = list.append


def make_trainer(learner, validation=None, group=None, **options):
    train = TrainConfig(num_workers=1, batch_size=2, learning_rate=0.4, **options)
    plan = TrainingPlan(train, 1, Model(MODEL, {}, {}), RecordTable([], [40], []), None, {})
    return Trainer(plan, group or NotTheFirst(), learner, Walks(), Interruption(), validation)


def test_broken_gradients_are_skipped_and_counted_up_to_a_limit(tmp_path):
    broken = range(3, 3 + MAX_SKIPPED_IN_ROW)
    trainer, saved = make_trainer(Learner(broken), max_steps=50, checkpoint_steps=2), Saved()
    with pytest.raises(DivergenceError, match=r"10 steps .*train.learning_rate"):
        trainer.run(tmp_path, saved)
    assert saved[0].step == 2
    options, saved = {"max_steps": 30, "log_steps": 100, "checkpoint_steps": 21}, Saved()
    make_trainer(Learner(range(2, 30, 2)), group=ProcessGroup(), **options).run(tmp_path, saved)
    assert [checkpoint.step for checkpoint in saved] == [21, 30]
    np.testing.assert_array_equal(saved[0].parts["reported"]["sums"], [5.5, 16.5, 840, 11, 10])
    np.testing.assert_array_equal(saved[0].parts["lanes/000000"]["counts"], np.array(COUNTS) * 11)


@pytest.mark.parametrize(
    ("broken", "use_best", "fails"),
    [({2}, False, False), ({6}, False, True), ({6}, True, False), (range(2, 7), True, True)],
)
@pytest.mark.parametrize("log_steps", [1, 6])
def test_a_training_that_diverged_is_told_and_ends_in_an_error_if_nothing_was_learnt(
    tmp_path, caplog, broken, use_best, fails, log_steps
):
    saved = Saved()
    trainer = make_trainer(Learner(broken), group=ProcessGroup(), max_steps=6, log_steps=log_steps, use_best=use_best)
    with pytest.raises(DivergenceError) if fails else contextlib.nullcontext():
        trainer.run(tmp_path, saved)
    assert f"train: {len(broken)} of 6 steps" in caplog.text
    trainer = make_trainer(Learner(), group=ProcessGroup(), max_steps=6, use_best=use_best)
    trainer.restore(saved[-1])  # the same command does not turn it into a success
    with pytest.raises(DivergenceError) if fails else contextlib.nullcontext():
        trainer.run(tmp_path, saved)


class Interrupted(ProcessGroup):
    """A group in which another process has a reason to stop."""

    rank = 1

    def gather(self, item):
        return [item, "SIGTERM"] if item is None else [item]


def test_a_stop_saves_a_checkpoint_and_ends_the_job(tmp_path):
    saved, learner = Saved(), Learner(stops=[5])
    with pytest.raises(TrainError, match="5 by SIGTERM"):
        make_trainer(learner, group=Interrupted(), max_steps=9, checkpoint_steps=4).run(tmp_path, saved)
    assert [checkpoint.step for checkpoint in saved] == [4, 5]
    assert not any(learner.wishes)


class Clock:
    """Time that passes in steps: a minute in each."""

    def __init__(self, learner):
        self._learner = learner

    def monotonic(self):
        return 60.0 * len(self._learner.rates)

    perf_counter = monotonic


def test_all_ranks_save_by_the_time_of_rank_0(tmp_path, monkeypatch):
    saved, learner = Saved(), Learner()
    monkeypatch.setattr("ffn.training.loop.time", Clock(learner))
    make_trainer(learner, group=ProcessGroup(), max_steps=11, checkpoint_minutes=3).run(tmp_path, saved)
    assert [checkpoint.step for checkpoint in saved] == [4, 8, 11]
    saved, learner = Saved(), Learner(saves=[2, 5])
    monkeypatch.setattr("ffn.training.loop.time", Clock(learner))
    make_trainer(learner, max_steps=9, checkpoint_minutes=1).run(tmp_path, saved)
    assert [checkpoint.step for checkpoint in saved] == [2, 5, 9] and not any(learner.saves_wanted)


def test_a_checkpoint_of_large_walks_has_positions_but_no_walks_and_no_errors_of_compression(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.training.loop.WALK_BYTES", 2**9)
    saved = Saved()
    make_trainer(Learner(), max_steps=4).run(tmp_path, saved)
    parts = {name: set(part) for name, part in saved[0].parts.items()}
    assert parts == {"lanes/000000": {"position", "counts"}, "lanes/000001": {"position", "counts"}}


OPTIONS = {"max_steps": 35, "log_steps": 10, "checkpoint_steps": 15, "validation_steps": 10}


def rows(folder, name):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_metrics(folder / name)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder and checkpoints of a training with validation."""
    folder, saved, validation = tmp_path_factory.mktemp("whole"), Saved(), Validation()
    make_trainer(Learner(), validation, ProcessGroup(), **OPTIONS).run(folder, saved)
    assert validation.steps == [0, 10, 20, 30, 35]
    return folder, saved


def test_rows_hold_the_costs_of_a_step_and_the_best_weights_are_kept(whole):
    metrics = read_metrics(whole[0] / "metrics.csv")
    assert [row["step"] for row in metrics] == [10, 20, 30, 35]
    for row in metrics:
        assert (row["compute_ms"], row["allreduce_ms"]) == pytest.approx((10, 2), abs=1)
        assert (row["bytes_sent"], row["gradient_norm"], row["epoch"]) == (40, 1.5, row["step"] * 2 / 40)
    assert [row["step"] for row in read_metrics(whole[0] / "validation.csv")] == [0, 10, 20, 30, 35]
    step, weights = load_best(whole[0])
    assert step == 20 and all((array == 20).all() for array in weights.values())
    assert [checkpoint.step for checkpoint in whole[1]] == [15, 30, 35]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_resumed_training_reports_as_an_uninterrupted_one(whole, tmp_path, number):
    folder, saved = whole
    make_trainer(Learner(), Validation(), ProcessGroup(), **OPTIONS).run(tmp_path, Saved())  # killed near its end
    validation, resumed = Validation(), Learner()
    trainer = make_trainer(resumed, validation, ProcessGroup(), **OPTIONS)
    trainer.restore(saved[number])
    trainer.run(tmp_path, Saved())
    assert validation.steps == [[20, 30, 35], [35], []][number]
    for name in ("metrics.csv", "validation.csv"):
        assert rows(tmp_path, name) == rows(folder, name)
    assert load_best(tmp_path)[0] == 20


class KilledAtTheBest(Learner):
    """Is killed while it hands out the weights of the best validation, after 20 steps."""

    def averaged_weights(self):
        if len(self.rates) == 20:
            raise KeyboardInterrupt
        return super().averaged_weights()


def test_a_best_model_that_was_not_written_is_validated_again(tmp_path):
    options, saved = {**OPTIONS, "checkpoint_steps": 20}, Saved()
    with pytest.raises(KeyboardInterrupt):
        make_trainer(KilledAtTheBest(), Validation(), ProcessGroup(), **options).run(tmp_path, saved)
    trainer = make_trainer(Learner(), Validation(), ProcessGroup(), **options)
    trainer.restore(saved[0])
    trainer.run(tmp_path, Saved())
    assert [row["step"] for row in read_metrics(tmp_path / "validation.csv")] == [0, 10, 20, 30, 35]
    assert load_best(tmp_path)[0] == 20


def test_other_validation_examples_start_a_new_table(whole, tmp_path):
    make_trainer(Learner(), Validation(), ProcessGroup(), **OPTIONS).run(tmp_path, Saved())
    validation = Validation(b"others")
    trainer = make_trainer(Learner(), validation, ProcessGroup(), **OPTIONS)
    trainer.restore(whole[1][1])
    trainer.run(tmp_path, Saved())
    assert [row["step"] for row in read_metrics(tmp_path / "validation.csv")] == [30, 35] == validation.steps
    assert load_best(tmp_path)[0] == 30


def test_a_new_training_discards_the_reports_of_an_old_one(tmp_path):
    for digest in (b"one", b"other"):
        make_trainer(Learner(), Validation(digest), ProcessGroup(), **OPTIONS).run(tmp_path, Saved())
        assert [row["step"] for row in read_metrics(tmp_path / "validation.csv")] == [0, 10, 20, 30, 35]


TRAIN = TrainConfig(max_steps=40)


def row(columns, step):
    """Return a row with scores that fall from the first step on."""
    return {**dict.fromkeys(columns, 0.5), "step": step, "f1": 0.5 - step / 100}


def weights(value=0):
    return {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(MODEL).items()}


def test_a_collapse_is_said_once(tmp_path, caplog):
    def report_f1(report, *values):
        for step, f1 in values:
            report.validation({**row(VALIDATION_COLUMNS, step), "f1": f1}, weights)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    with contextlib.closing(Report(tmp_path, TRAIN, MODEL, 0, same_examples=True)) as report:
        assert report_f1(report, (0, 0.8), (10, 0.5)) == []
        (said,) = report_f1(report, (20, 0.3), (30, 0.2))
    assert said.startswith("train: validation F1")
    with contextlib.closing(Report(tmp_path, TRAIN, MODEL, 30, same_examples=True)) as report:
        assert report_f1(report, (40, 0.1)) == [said]


COPIES = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"


def report_rows(folder, command, steps):
    """Make reports of rows with a command that reads them."""
    train = TrainConfig(max_steps=40, on_row=shlex.join(command))
    with contextlib.closing(Report(folder, train, MODEL, 0, same_examples=True)) as report:
        for step in steps:
            report.training(row(COLUMNS, step))
            if step % 20 == 0:
                report.validation(row(VALIDATION_COLUMNS, step), weights)


def test_a_command_reads_each_row_as_json(tmp_path):
    report_rows(tmp_path, [sys.executable, "-c", COPIES, f"{tmp_path}/rows of a run"], (10, 20))
    rows = [json.loads(line) for line in (tmp_path / "rows of a run").read_text().splitlines()]
    assert [(each["run"], each["step"]) for each in rows] == [("train", 10), ("train", 20), ("validation", 20)]
    assert {*rows[0]} == {"run", *COLUMNS} and {*rows[2]} == {"run", *VALIDATION_COLUMNS}


@pytest.mark.parametrize("command", ["no-such-tracker", "false", "sleep 99", ""])
def test_a_command_that_fails_or_does_not_read_is_one_warning(command, caplog):
    rows = RowCommand(command)
    for step in range(400):  # more than a pipe takes
        rows.write("train", row(COLUMNS, step))
    rows.close(seconds=0.1)
    assert [record.getMessage()[:12] for record in caplog.records] == ["train.on_row"]
