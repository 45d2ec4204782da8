from ffn.cli import main


def test_a_prefix_is_imported_as_a_published_checkpoint(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.model.published.import_checkpoint", lambda *given: calls.append(given))
    assert main(["import-checkpoint", "model.ckpt-7", "--out", "model", "--image-mean", "99"]) == 0
    ((prefix, folder, config),) = calls
    assert (prefix, folder) == ("model.ckpt-7", "model")
    assert (config.image_mean, config.image_stddev) == (99, 33), "the defaults are those of FIB-25"


def test_a_step_of_training_is_exported(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("ffn.training.checkpoint_files.export_checkpoint", lambda *given: calls.append(given))
    for checkpoint in ("checkpoints/step-00000500", str(tmp_path)):
        assert main(["import-checkpoint", checkpoint, "--out", "model"]) == 0
    assert calls == [("checkpoints/step-00000500", "model"), (str(tmp_path), "model")]
