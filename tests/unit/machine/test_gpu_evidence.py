"""Why TensorFlow sees no GPU, from what machines with and without GPUs say."""

import dataclasses

import pytest

from ffn.machine import gpu_evidence
from ffn.machine.gpu_evidence import Card, GpuEvidence, cards, why_none

A100 = Card("NVIDIA A100-SXM4-40GB", "550.54.15", (8, 0))
FINE = GpuEvidence((A100,), True, cuda="12.5.1", oldest=(6, 0))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cards": (), "has_card": False}, "no NVIDIA card here. If there is one, a container needs"),
        (
            {"cards": (), "complaint": "there is no nvidia-smi"},
            "an NVIDIA card, but its driver does not answer (there is no nvidia-smi).",
        ),
        ({"visible": ""}, "CUDA_VISIBLE_DEVICES='' hides NVIDIA A100-SXM4-40GB. Unset it"),
        ({"visible": "-1"}, "CUDA_VISIBLE_DEVICES='-1' hides"),
        ({"visible": "1,0"}, "CUDA_VISIBLE_DEVICES='1,0' hides"),
        ({"cuda": ""}, "TensorFlow is built without CUDA. Run make setup GPU=1"),
        ({"missing": ("cublas", "cudnn")}, "CUDA libraries are missing: cublas, cudnn. Run make setup GPU=1"),
        ({"cards": (A100._replace(driver="470.82.01"),)}, "NVIDIA driver 470.82.01 is too old for CUDA 12"),
        ({"cards": (A100._replace(name="K80", capability=(3, 7)),)}, "K80 is older than TensorFlow supports"),
        ({"cards": (A100._replace(name="X", capability=(13, 0)),)}, "X is newer than CUDA 12 supports"),
        ({}, "unknown: NVIDIA A100-SXM4-40GB, driver 550.54.15 and CUDA 12.5.1 fit."),
        ({"visible": "0"}, "unknown"),
        ({"visible": "GPU-8f1c"}, "unknown"),
    ],
)
def test_the_first_reason_is_told_in_one_line(changes, reason):
    told = why_none(dataclasses.replace(FINE, **changes))
    assert told.startswith(reason) and "\n" not in told


@pytest.mark.parametrize(
    ("script", "found", "complaint"),
    [
        ("echo 'NVIDIA A100-SXM4-40GB, 550.54.15, 8.0'", (A100,), ""),
        ("echo 'Tesla, , 8.0'", (), "Tesla, , 8.0"),
        ("echo 'NVIDIA-SMI has failed.\nMake sure it runs.'; exit 9", (), "NVIDIA-SMI has failed. Make sure it runs."),
    ],
)
def test_the_driver_tells_its_cards(script, found, complaint, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert cards() == (found, complaint)


def test_a_card_without_a_driver_is_found_on_the_bus(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_evidence, "PCI", tmp_path)
    for number, (vendor, kind) in enumerate([("0x8086", "0x030000"), ("0x10de", "0x020000"), ("0x10de", "0x030200")]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
        assert gpu_evidence._is_on_the_bus() == (number == 2)
