"""What is refused before a checkpoint is read; tests/integration reads real ones."""

import pytest

from ffn.config import ModelConfig
from ffn.errors import ModelError
from ffn.model.published import import_checkpoint, read_checkpoint


@pytest.mark.parametrize("missing", ["image_mean", "image_stddev"])
def test_the_normalisation_must_be_given(tmp_path, missing):
    config = ModelConfig(**{"image_mean": 128, "image_stddev": 33, missing: None})
    with pytest.raises(ModelError, match="--image-mean"):
        import_checkpoint("model.ckpt-7", str(tmp_path / "model"), config)
    assert not (tmp_path / "model").exists()


def test_a_missing_or_damaged_checkpoint_is_refused(tmp_path):
    with pytest.raises(ModelError, match="model.ckpt-7.index"):
        read_checkpoint(f"{tmp_path}/model.ckpt-7")
    (tmp_path / "model.ckpt-7.index").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelError, match="model.ckpt-7: "):
        read_checkpoint(f"{tmp_path}/model.ckpt-7")
