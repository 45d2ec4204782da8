"""`ffn segment` on a box: everything it writes is in full-volume coordinates and says how it was made."""

import gc
import re
import shutil
import signal
import weakref

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import SegmentError
from ffn.geometry import Box
from ffn.inference.subvolume import CheckpointFile, SubvolumeFlood
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.model.choice import Choice

from ..engines import HERE
from ..jobs import files as files_of
from ..volumes import contents, create_volume, write_volume

IMAGE = Box((100, 20, 3), (140, 60, 63))
BOX = Box((104, 24, 7), (136, 58, 60))
FIRST = Box((104, 24, 7), (136, 58, 30))  # of `CUT_IN_THREE`, whose canvases are as large
IN_FIRST = ("--box", str(FIRST), "--within", str(BOX))  # so JAX compiles one program for all
CUT = ("--no-mirror",)


@pytest.fixture
def scene(tmp_path, bright_model, tubes):
    """Two bright tubes, and a network that follows what is bright."""
    write(tmp_path, "raw", IMAGE, tubes(IMAGE.shape, (8, 22)))
    return tmp_path


def write(folder, name, box, image):
    write_volume(f"{folder}/{name}.h5:raw", image, Placement(box, (10, 10, 10)))


def words(folder, *options, out="seg.zarr"):
    """Return the command line."""
    sources = ["--image", f"{folder}/raw.h5:raw", "--model", f"{folder}/model", "--min-segment-um3", "5e-05"]
    return ["segment", *sources, *options, "--out", f"{folder}/{out}"]


def segment(folder, *options, name="seg"):
    assert main(words(folder, "--box", str(BOX), *options, out=f"{name}.zarr")) == 0
    return folder / f"{name}.zarr"


@pytest.mark.parametrize("engine", HERE)
def test_tubes_are_segmented_in_full_volume_coordinates(scene, engine):
    path = segment(scene, "--engine", engine, "--precision", "float32", *IN_FIRST)
    with open_volume(path) as volume:
        assert volume.box == FIRST
        labels = volume.read()
        record = volume.provenance
    inside = labels[5:13, 5:13, 10:-10]
    assert (inside > 0).mean() > 0.5
    first = set(np.unique(inside).tolist()) - {0}
    second = set(np.unique(labels[19:27, 19:27]).tolist()) - {0}
    assert len(first) == len(second) == 1 and first != second
    assert record["inputs"]["engine"] == f"{engine} float32"
    file = read(path)
    for segment_id, *seed, num_fovs, pass_number in file["origins"]:
        assert labels[tuple(np.subtract(seed, FIRST.start))] == segment_id
        assert num_fovs > 0 and pass_number == 1
    assert ((file["probability"] > 0) == (labels > 0)).all()


def test_objects_at_the_faces_of_the_image_are_segmented_as_well(scene):
    """The FOV has a radius of 2, 2 and 3 voxels, so without a mirror image it is never centred on these objects."""
    image = np.full(IMAGE.shape, 60, np.uint8)
    image[:2, 18:21, :3], image[-2:, -2:, 30:35] = 210, 220
    write(scene, "raw", IMAGE, image)
    (scene / "seeds.csv").write_text("z,y,x\n100,39,4\n138,58,35\n")
    places = ("--box", str(IMAGE), "--seed-points", f"{scene}/seeds.csv")
    paths = [segment(scene, *places, "--min-segment-um3", "9e-06", *more, name=f"seg{len(more)}") for more in ((), CUT)]
    file, cut = read(paths[0]), read(paths[1])
    labels = file["segmentation"]
    assert (labels == np.select([image == 210, image == 220], [1, 2])).all()
    assert file["origins"][:, :4].tolist() == [[1, 100, 39, 4], [2, 138, 58, 35]]
    assert not cut["segmentation"].any()


def test_a_box_inside_the_image_is_segmented_up_to_its_faces(scene):
    """As in a run of the whole image; a subvolume of a larger box leaves its faces to its neighbours."""
    around = read(segment(scene, "--box", str(IMAGE), name="all"))["segmentation"][BOX.slices(IMAGE.start)]
    found = read(segment(scene))["segmentation"]
    part = read(segment(scene, "--within", str(IMAGE), name="part"))["segmentation"]
    covered = [np.array([(labels[:, :, x] > 0).mean() for x in (0, -1)]) for labels in (around, found, part)]
    np.testing.assert_allclose(covered[1], covered[0], rtol=0.03)
    assert (covered[2] < covered[0] / 2).all()


@pytest.mark.parametrize(
    ("box", "within", "message"),
    [("106:108,24:58,7:60", BOX, "no centre of a FOV"), (BOX, "90:140,20:60,3:63", "outside of 100:140,20:60,3:63")],
)
def test_a_larger_box_beyond_the_image_and_a_subvolume_without_room_are_refused(scene, capsys, box, within, message):
    assert main(words(scene, "--box", str(box), "--within", str(within))) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "number"),
    [((), 1), (("--masks", "{scene}/mask.h5:labels"), 2), (("--init-segmentation", "{scene}/given.h5:labels"), 2)],
)
def test_objects_that_leave_a_box_and_come_back_are_followed(scene, options, number):
    """A bridge before the box joins two parts, unless it is in a given segment, or where masks do not reach."""
    image = np.full(IMAGE.shape, 60, np.uint8)
    image[3, 10:15, 10:25] = image[4:10, 10:15, 10:15] = image[4:10, 10:15, 20:25] = 180
    image[3, 12, 12:23] = image[3:8, 12, 12] = image[3:8, 12, 22] = 220  # here FOVs stay
    write(scene, "raw", IMAGE, image)
    for name, value, box in (("given", 7, Box(IMAGE.start, (104, 60, 63))), ("mask", 0, BOX)):
        write_volume(f"{scene}/{name}.h5:labels", np.full(box.shape, value, np.uint64), Placement(box, (10, 10, 10)))
    (scene / "seeds.csv").write_text("z,y,x\n106,32,15\n106,32,25\n")
    more = [option.format(scene=scene) for option in options]
    file = read(segment(scene, "--seed-points", f"{scene}/seeds.csv", *more))
    labels, bright = file["segmentation"], image[BOX.slices(IMAGE.start)] > 128
    assert ((labels > 0) == bright).all() and np.unique(labels[bright]).tolist() == list(range(1, number + 1))
    assert len(file["origins"]) == number


@pytest.mark.parametrize("num_sections", [1, 3])
def test_a_stack_thinner_than_the_fov_is_segmented(scene, num_sections, tubes, capsys):
    """The FOV has 5 sections. Seeds are peaks of the distance to membranes."""
    thin = Box(IMAGE.start, (IMAGE.start[0] + num_sections, *IMAGE.stop[1:]))
    image = tubes(IMAGE.shape, (8, 22))[12 : 12 + num_sections]
    write(scene, "raw", thin, image)
    file = read(segment(scene, "--box", str(thin)))
    found = file["segmentation"]
    assert len(np.unique(found[image > 128])) == 2
    assert (found[image > 128] > 0).mean() > 0.9
    assert main(words(scene, *CUT, out="cut.zarr")) == 2
    assert "(5, 5, 7)" in capsys.readouterr().err


def data(path):
    """Return the files of a store but the one with its name."""
    return {name: content for name, content in files_of(path).items() if name != "zarr.json"}


def read(path):
    return contents(path, "segmentation")


CUT_IN_THREE = ("--size", "32", "34", "23", "--overlap", "4", "4", "7")
TWO_OF_THREE = "104:136,24:58,7:46"
JAX = ("--engine", "jax", "--precision", "float32")


def segment_parts(folder, *options, name="parts", cut=CUT_IN_THREE):
    """Segment subvolumes in one process; return the exit code and their stores."""
    code = main(words(folder, "--box", str(BOX), *cut, *options, out=f"{name}/"))
    return code, sorted((folder / name).glob("*.zarr"))


@pytest.mark.slow
def test_subvolumes_of_one_process_have_the_bytes_of_one_after_another(scene):
    pytest.importorskip("jax")
    options = (*JAX, "--masks", "#box=100:140,20:60,30:33", "--second-pass")
    _, one_by_one = segment_parts(scene, *options, name="alone")
    _, together = segment_parts(scene, *options, "--canvases", "2", name="together")
    assert len(together) == 3
    for one, other in zip(one_by_one, together, strict=True):
        assert all(np.array_equal(read(one)[name], read(other)[name]) for name in read(one))
        assert len(read(one)["origins"]) > 1


@pytest.mark.slow
def test_a_folder_gets_the_subvolumes_of_a_box(scene):
    """The bytes are those of one box after another; what is finished is not made again."""
    job = ("--job", "1-of-1", "--job-record", f"{scene}/1-of-1.json")
    cut = ("--size", "32", "34", "30", "--overlap", "4", "4", "7")
    code, stores = segment_parts(scene, *job, cut=cut)
    assert code == 0 and [path.stem for path in stores] == ["z000104-y000024-x000007", "z000104-y000024-x000030"]
    assert data(stores[1]) == data(segment(scene, "--box", "104:136,24:58,30:60", "--within", str(BOX), name="alone"))
    states = [(data(path), (path / "zarr.json").stat().st_mtime_ns) for path in stores]
    shutil.rmtree(stores[0])
    assert segment_parts(scene, *job, cut=cut)[0] == 0
    assert data(stores[0]) == states[0][0] and (stores[1] / "zarr.json").stat().st_mtime_ns == states[1][1]
    assert not list(scene.rglob("*.checkpoint"))
    assert segment_parts(scene, *job, "--min-segment-um3", "6e-05", cut=cut)[0] == 0
    assert data(stores[1]) != states[1][0], "other options"


@pytest.mark.slow
def test_in_a_folder_the_others_resume_after_one_is_finished(scene, monkeypatch, caplog, capsys):
    """There are as many canvases as before and the card is the same, or their checkpoints would be of another job."""
    pytest.importorskip("jax")
    options = (*JAX, "--canvases", "2", "--box", TWO_OF_THREE)
    _, whole = segment_parts(scene, *options, name="whole")
    leave = SubvolumeFlood.leave

    def terminated(job):
        leave(job)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(SubvolumeFlood, "leave", terminated)
        patch.setattr("ffn.inference.segment.results_depend_on", lambda device: "same")
        code, finished = segment_parts(scene, *options)
    assert code == 2 and len(finished) == len(list(scene.rglob("*.checkpoint"))) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{scene}/parts/" in last and "SIGTERM" in last
    shutil.copytree(scene / "parts", scene / "other")
    for name, card, times in (("parts", "same", 1), ("other", "other", 0)):
        caplog.clear()
        monkeypatch.setattr("ffn.inference.segment.results_depend_on", lambda device, card=card: card)
        with caplog.at_level("INFO"):
            code, resumed = segment_parts(scene, *options, name=name)
        assert code == 0 and caplog.text.count("resuming from") == times
        assert not list((scene / name).glob("*.checkpoint"))
        assert [data(path) for path in resumed] == [data(path) for path in whole]


def test_a_folder_goes_on_with_what_auto_took_first(scene, monkeypatch):
    """Where two precisions are about as fast, measuring again would start over."""
    times = []
    for precision in ("float32", "bfloat16"):
        choice = Choice("openvino", precision, "it was the fastest")
        monkeypatch.setattr("ffn.inference.inputs._choose", lambda *_, choice=choice: choice)
        code, stores = segment_parts(scene)
        times.append([(path / "zarr.json").stat().st_mtime_ns for path in stores])
    assert code == 0 and times[0] == times[1] and len(times[0]) == 3


def test_memory_does_not_grow_with_the_number_of_boxes(scene, monkeypatch):
    """A flood that is written leaves the memory before the next one is written."""
    arrays, alive, write = [], [], SubvolumeFlood.write

    def counted(job):
        gc.collect()
        alive.append(sum(array() is not None for array in arrays))
        arrays.extend(weakref.ref(array) for array in (job.flood.segmentation, job.flood.probability))
        write(job)

    monkeypatch.setattr(SubvolumeFlood, "write", counted)
    segment_parts(scene)
    assert alive == [0, 0, 0]


def test_masks_leave_their_voxels_empty(scene):
    masked = Box((100, 20, 3), (140, 60, 25))
    with create_volume(f"{scene}/mask.h5:mask", np.uint8, Placement(IMAGE, (10, 10, 10))) as writer:
        writer.write(masked, np.full(masked.shape, 7, np.uint8))
    path = segment(scene, "--masks", f"{scene}/mask.h5:mask", "#box=90:150,0:99,44:50", "#box=90:119,0:99,50:99")
    labels = read(path)["segmentation"]
    assert not labels[:, :, : 25 - 7].any() and not labels[:, :, 44 - 7 : 50 - 7].any()
    assert not labels[: 119 - 104, :, 44 - 7 :].any()
    assert labels[:, :, 25 - 7 : 44 - 7].any()
    assert not read(segment(scene, "--masks", "#box=0:200,0:200,0:200"))["segmentation"].any()


def test_padding_is_left_empty(scene, tubes):
    noise = np.random.default_rng(0).integers(0, 16, IMAGE.shape, np.uint8)  # a drawing has no padding
    image = np.minimum(tubes(IMAGE.shape, (8, 22)), 230) + noise
    image[:, :, 20:] = 250  # bright, as the tubes are
    write(scene, "raw", IMAGE, image)
    labels = read(segment(scene))["segmentation"]
    assert labels[:, :, : 20 - 4].any() and not labels[:, :, 20 - 4 :].any()


def interrupt(scene, monkeypatch, *options):
    """Begin to segment, and end with a checkpoint."""

    def stop(self, state, now=False):
        self.save(state())
        raise SegmentError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "save_when_due", stop)
        with pytest.raises(AssertionError):
            segment(scene, *options)
    assert (scene / "seg.zarr.checkpoint").exists()


def test_a_job_goes_on_where_auto_would_take_another_engine(scene, caplog, monkeypatch):
    pytest.importorskip("jax")
    options = ("--machine", f"{scene}/machine", *IN_FIRST)
    with monkeypatch.context() as patch:
        patch.setattr("ffn.inference.inputs._choose", lambda *_: Choice("jax", "float32", "there is no other"))
        interrupt(scene, monkeypatch, *options)
    with caplog.at_level("INFO"):
        path = segment(scene, *options)
    assert f"resuming from {path}.checkpoint" in caplog.text
    with open_volume(path) as volume:
        assert volume.provenance["inputs"]["engine"] == "jax float32"


def test_a_checkpoint_of_an_image_that_has_grown_is_not_continued(scene, tubes, caplog, monkeypatch):
    """Its box has the same voxels, but it ends with the image no more."""
    where, larger = ("--box", str(IMAGE)), Box(IMAGE.start, (150, 60, 63))
    with open_volume(f"{scene}/raw.h5:raw") as volume:
        image = volume.read()
    interrupt(scene, monkeypatch, *where)
    write(scene, "raw", larger, np.pad(image, [(0, 10), (0, 0), (0, 0)]))
    with caplog.at_level("INFO"):
        segment(scene, *where)
    assert "another job" in caplog.text


def test_what_is_segmented_already_keeps_its_voxels_and_is_not_entered(scene):
    """A soma of coarse voxels covers the first half of the first tube, and less than the box."""
    coarse = Box((50, 10, 1), (70, 30, 17))
    labels = np.zeros(coarse.shape, np.uint64)
    labels[3:9, 3:9, :8] = 2**40 + 5
    labels[-1, -1, -1] = 3  # outside of the box to segment
    write_volume(f"{scene}/soma.h5:labels", labels, Placement(coarse, (20, 20, 20)))
    free = read(segment(scene, name="free"))
    found = read(segment(scene, "--init-segmentation", f"{scene}/soma.h5:labels"))
    soma = np.zeros(BOX.shape, bool)
    soma[:, :, : 34 - 7] = labels.repeat(2, 0).repeat(2, 1).repeat(2, 2)[BOX.slices((100, 20, 2))] > 3
    assert soma.any() and (found["segmentation"][soma] == 1).all() and not (found["segmentation"][~soma] == 1).any()
    assert found["given"].tolist() == [[1, 2**40 + 5]] and "given" not in free
    assert found["origins"][0, [0, 4, 5]].tolist() == [1, 0, 0] and (found["probability"][soma] == 255).all()
    assert (found["origins"][1:, 4] > 0).all()
    second = np.s_[19:27, 19:27]  # the other tube is what it was
    np.testing.assert_array_equal(found["segmentation"][second] > 0, free["segmentation"][second] > 0)


def test_a_run_with_given_segments_resumes_to_the_same_bytes(scene, monkeypatch):
    labels = np.zeros(IMAGE.shape, np.uint64)
    labels[8:18, 8:18, :12] = 9
    write_volume(f"{scene}/soma.h5:labels", labels, Placement(IMAGE, (10, 10, 10)))
    options = ("--init-segmentation", f"{scene}/soma.h5:labels")
    whole = data(segment(scene, *options, name="whole"))
    interrupt(scene, monkeypatch, *options)
    assert data(segment(scene, *options)) == whole


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("{scene}/mine.h5:segmentation", "mine.h5:segmentation: expected a folder NAME.zarr"),
        ("{scene}/mine.zarr", "mine.zarr: holds .'notes'., expected nothing but"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_flood(scene, monkeypatch, capsys, out, said):
    """A checkpoint is of one output, so the work would be lost."""
    (scene / "mine.zarr").mkdir()
    (scene / "mine.zarr/notes").write_text("mine")
    monkeypatch.setattr(SubvolumeFlood, "read", lambda job: pytest.fail("it has begun"))
    words = ["segment", "--image", f"{scene}/raw.h5:raw", "--model", f"{scene}/model"]
    assert main([*words, "--out", out.format(scene=scene)]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--masks", "--init-segmentation"])
def test_a_mask_that_is_not_there_is_named_before_the_engine_is_chosen(scene, monkeypatch, capsys, option):
    monkeypatch.setattr("ffn.inference.inputs.chosen", lambda *_: pytest.fail("it has measured for minutes"))
    words = ["segment", "--image", f"{scene}/raw.h5:raw", "--model", f"{scene}/model", option, f"{scene}/no.h5:labels"]
    for out in (f"{scene}/seg.zarr", f"{scene}/parts/"):
        tiles = ["--size", "40", "40", "40", "--overlap", "16", "16", "16"] if out.endswith("/") else []
        assert main([*words, *tiles, "--out", out]) == 2
        assert "no.h5: " in capsys.readouterr().err
