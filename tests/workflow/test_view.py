"""`ffn view` on what the workflow made: a complete picture, with coloured neurons in every panel."""

import csv
import subprocess
import sys
import time

import pytest

from ffn.assembly.given import known_corrections

from ..browser import browser_at, press

SIZE = (800, 600)
pytestmark = pytest.mark.slow


def ffn(*arguments):
    command = [sys.executable, "-m", "ffn", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_store_of_a_run_is_shown_as_it_is(finished, tmp_path, panel_colours):
    stores = ["volumes/phantom/raw.zarr", "segmentation/phantom/segmentation.zarr"]
    paths = [finished.results / store for store in stores]
    ffn("view", *paths, "--screenshot", tmp_path / "a.png", "--size", *SIZE)
    assert all(panel_colours(tmp_path / "a.png")[panel] for panel in ("xy", "xz", "yz"))


def test_a_key_in_a_browser_answers_a_question_and_another_takes_it_back(finished, tmp_path):
    ffn("queue", finished.results)
    with (finished.results / "agglomeration/phantom/queue.csv").open() as file:
        places = list(csv.DictReader(file))
    assert places and (finished.results / f"precomputed/phantom/links/{places[0]['name']}.json").exists()
    answers = tmp_path / "answers.csv"
    command = [sys.executable, "-m", "ffn", "view", finished.results, "--queue", answers, "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            with browser_at(process.stdout.readline().strip(), tmp_path / "profile") as send:
                for key, done in (("y", 1), ("u", 0)):
                    while bool(known_corrections(answers)) != done:  # a page that still loads takes no keys
                        press(send, key)
                        time.sleep(0.5)
        finally:
            process.kill()
