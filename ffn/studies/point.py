"""One training run of the studies, for one number of workers, learning rate and seed."""

from __future__ import annotations

import logging
from pathlib import Path

from ffn.config import ModelConfig
from ffn.errors import DivergenceError
from ffn.io import atomic
from ffn.machine.launchers import launched_rank
from ffn.model.choice import FOLDER
from ffn.studies.learning_rate import best_rate
from ffn.studies.runs import PROCESSES
from ffn.training.config import TrainConfig
from ffn.training.plan import TrainingData
from ffn.training.train import train

log = logging.getLogger(__name__)


def train_point(
    data: TrainingData,
    runs_folder: str,
    out_path: str,
    model: ModelConfig,
    config: TrainConfig,
    rng_seed: int,
    rates_path: str | None = None,
) -> None:
    """Train, or resume training, and write the metrics; a run that diverges ends early, which is also a result.

    Every process of the run calls this, and rank 0 writes.

    Parameters
    ----------
    data : TrainingData
        Records and volumes.
    runs_folder : str
        Folder for the model folder, which is named after workers, rate and seed.
    out_path : str
        CSV file to write: the metrics, and the number of processes that shared out the workers.
    model : ModelConfig
        Architecture.
    config : TrainConfig
        Options; processes times virtual workers is the number of workers.
    rng_seed : int
        Seed of everything random.
    rates_path : str, optional
        Output of the study of the learning rate; its best rate replaces that of `config`.

    Raises
    ------
    FfnError
        If the files do not fit together, or training fails for another reason.
    """
    workers = config.num_workers * config.virtual_workers
    if rates_path is not None:
        config = config.model_copy(update={"learning_rate": best_rate(rates_path, workers)})
    folder = Path(runs_folder) / f"workers-{workers}-rate-{config.learning_rate!r}-seed-{rng_seed}"
    try:
        train(data, str(folder), model, config, rng_seed, machine=f"{runs_folder}/{FOLDER}")
    except DivergenceError as error:
        log.warning("%s", error)
    except SystemExit as end:  # of another rank, where rank 0 has the error
        if not isinstance(end.__cause__, DivergenceError):
            raise
    launch = launched_rank()
    if launch is None or launch.rank == 0:
        header, *rows = (folder / "metrics.csv").read_text().splitlines()
        lines = [f"{header},{PROCESSES}", *(f"{row},{config.num_workers}" for row in rows)]
        atomic.write_text(out_path, "".join(f"{line}\n" for line in lines))
