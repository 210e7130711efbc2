"""The data sets, read from files that the tests make."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from paraaegis.errors import ConfigError, DataError
from paraaegis.learn import imagenette
from paraaegis.learn.data import DATASETS, Dataset, describe, load

RNG = np.random.default_rng(0)


def test_importing_the_data_sets_loads_neither_torch_nor_sklearn_nor_pillow():
    check = "import sys, paraaegis.learn.data, paraaegis.learn.split as _; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert not {"torch", "sklearn", "PIL"} & set(loaded.stdout.split())


def test_every_data_set_says_what_it_is_and_where_to_get_it():
    assert [name for name, _, _ in describe()] == list(DATASETS)
    assert all(description and get for _, description, get in describe())


def test_an_unknown_data_set_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="digits, fashion-mnist, cifar10, imagenette, got 'mnist'"):
        load("mnist")


def test_only_photographs_have_a_size_to_choose():
    with pytest.raises(ConfigError, match="got 64 for digits"):
        load("digits", size=64)


def test_labels_outside_of_the_classes_are_refused():
    images = np.zeros((2, 8, 8, 1), np.uint8)
    with pytest.raises(DataError, match=r"labels must lie in 0..9, got 0..10"):
        Dataset("mine", images, np.array([0, 10]), images, np.array([0, 1]), 10, False, (0.5,), (0.5,))


def test_a_label_is_needed_for_each_image():
    images = np.zeros((2, 8, 8, 1), np.uint8)
    with pytest.raises(DataError, match=r"test needs images of one shape and a label for each"):
        Dataset("mine", images, np.array([0, 1]), images, np.array([0]), 10, False, (0.5,), (0.5,))


# digits


def test_digits_are_split_evenly_by_class_and_always_the_same():
    digits, again = load("digits"), load("digits")
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_images.max() == 255
    assert digits.train_labels.dtype == np.int64
    assert np.ptp(np.bincount(digits.test_labels)) <= 2
    assert np.array_equal(digits.test_images, again.test_images)
    assert digits.shape == (8, 8, 1)
    assert not digits.augment


def test_the_constants_of_digits_are_those_of_its_training_images():
    digits = load("digits")
    pixels = digits.train_images / 255
    assert digits.mean == pytest.approx((pixels.mean(),), abs=1e-4)
    assert digits.std == pytest.approx((pixels.std(),), abs=1e-4)


# fashion-mnist

IMAGES = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 10


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def fashion(tmp_path):
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return tmp_path


def test_fashion_mnist_reads_idx_files_packed_or_not(fashion):
    data = load("fashion-mnist", fashion)
    assert np.array_equal(data.train_images[..., 0], IMAGES)
    assert np.array_equal(data.test_labels, LABELS)
    assert data.shape == (28, 28, 1)


def test_a_missing_fashion_mnist_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.* in {tmp_path}.*apt-get install"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        idx(IMAGES)[:-1],
        idx(IMAGES)[:10],
        idx(IMAGES) + b"\0",
        idx(LABELS),
        b"",
        b"\x1f\x8b",
    ],
    ids=["short", "cut header", "long", "labels", "empty", "gzip"],
)
def test_a_broken_idx_file_is_refused_by_name(fashion, broken):
    (fashion / "train-images-idx3-ubyte.gz").unlink()
    (fashion / "train-images-idx3-ubyte").write_bytes(broken)
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        load("fashion-mnist", fashion)


@pytest.mark.parametrize("keep", [30, 200, -1])
def test_a_truncated_gzip_file_is_refused_by_name(fashion, keep):
    path = fashion / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz cannot be read"):
        load("fashion-mnist", fashion)


# cifar10


def batch(count, protocol=3):
    data = RNG.integers(0, 256, (count, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": data, b"labels": list(range(count))}, protocol)


@pytest.fixture
def cifar(tmp_path):
    root = tmp_path / "cifar-10-batches-py"
    root.mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (root / name).write_bytes(batch(4))
    return root


def test_cifar10_reads_its_batches_from_the_folder_or_the_one_around_it(cifar):
    data, outer = load("cifar10", cifar), load("cifar10", cifar.parent)
    assert data.train_images.shape == (20, 32, 32, 3)
    assert data.test_images.shape == (4, 32, 32, 3)
    assert np.array_equal(data.train_images, outer.train_images)
    assert data.augment
    first = pickle.loads((cifar / "data_batch_1").read_bytes())[b"data"][0]  # noqa: S301
    assert data.train_images[0, 0, 1].tolist() == [first[1], first[1025], first[2049]]


def test_cifar10_reads_the_pickles_that_python_2_wrote(cifar):
    """The official files name numpy.core and hold their strings as Python 2 strings."""
    data = RNG.integers(0, 256, (1, 3072), dtype=np.uint8).tobytes()
    old = (
        b"\x80\x02}q\x01(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff"
        b"\xff\xffK\x00tb\x89T" + struct.pack("<I", len(data)) + data + b"tbU\x06labels]K\x07au."
    )
    (cifar / "test_batch").write_bytes(old)
    loaded = load("cifar10", cifar)
    assert loaded.test_labels.tolist() == [7]
    assert loaded.test_images.transpose(0, 3, 1, 2).tobytes() == data


class Malicious:
    def __reduce__(self):
        return os.system, ("touch owned",)


def test_a_cifar10_batch_that_wants_to_run_code_is_refused(cifar, monkeypatch):
    monkeypatch.chdir(cifar)
    (cifar / "data_batch_3").write_bytes(pickle.dumps({b"data": Malicious(), b"labels": []}))
    with pytest.raises(DataError, match=r"data_batch_3 .*posix.system, which a CIFAR-10 batch does not need"):
        load("cifar10", cifar)
    assert not (cifar / "owned").exists()


@pytest.mark.parametrize(
    "broken",
    [
        batch(4)[:-100],
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": 5, b"labels": [1]}, 3),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, 3),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}, 3),
        pickle.dumps({b"data": np.zeros((1, 1024), np.uint8), b"labels": [1]}, 3),
    ],
)
def test_a_broken_cifar10_batch_is_refused_by_name(cifar, broken):
    (cifar / "data_batch_2").write_bytes(broken)
    with pytest.raises(DataError, match="data_batch_2"):
        load("cifar10", cifar)


def test_a_missing_cifar10_batch_says_where_to_get_it(cifar, tmp_path, monkeypatch):
    (cifar / "data_batch_5").unlink()
    with pytest.raises(DataError, match=r"no data_batch_5 in .*kriz/cifar"):
        load("cifar10", cifar)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"no data_batch_1 in {tmp_path}/data/cifar10.*Put it there"):
        load("cifar10")


# imagenette

WNIDS = [f"n{number:08}" for number in range(10)]


@pytest.fixture
def nette(tmp_path, monkeypatch):
    """Ten classes, two training images and one validation image each, of one grey each, in odd sizes."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "data" / "imagenette2-160"
    for part, count in (("train", 2), ("val", 1)):
        for label, wnid in enumerate(WNIDS):
            folder = root / part / wnid
            folder.mkdir(parents=True)
            for number in range(count):
                grey = np.full((20, 30 + number), 20 * label + number, np.uint8)
                Image.fromarray(grey).save(folder / f"{wnid}_{number}.JPEG")
    return root


def caches(root):
    return sorted((root / ".paraaegis-cache").glob("*"))


def test_imagenette_is_read_in_the_order_of_the_sorted_class_names(nette):
    data = load("imagenette", nette.parent, size=16)
    assert data.train_images.shape == (20, 16, 16, 3)
    assert data.test_images.shape == (10, 16, 16, 3)
    assert data.train_labels.tolist() == np.repeat(range(10), 2).tolist()
    greys = data.train_images.mean((1, 2, 3))
    assert np.allclose(greys, [20 * (i // 2) + i % 2 for i in range(20)], atol=1)


def test_imagenette_is_128_pixels_wide_unless_told_otherwise(nette):
    assert load("imagenette", nette).shape == (128, 128, 3)


def test_imagenette_is_decoded_once_and_then_mapped(nette, monkeypatch):
    steps = []
    first = load("imagenette", nette, size=16, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(n, 20) for n in range(1, 21)] + [(n, 10) for n in range(1, 11)]
    assert len(caches(nette)) == 2
    monkeypatch.setattr(imagenette, "_decode", None)
    again = load("imagenette", nette, size=16)
    assert isinstance(again.train_images, np.memmap)
    assert np.array_equal(first.train_images, again.train_images)


def test_a_new_image_makes_a_new_cache(nette):
    load("imagenette", nette, size=16)
    Image.new("RGB", (20, 20), (250, 250, 250)).save(nette / "train" / WNIDS[9] / "zz.JPEG")
    data = load("imagenette", nette, size=16)
    assert len(data.train_images) == 21
    assert data.train_images[-1].min() > 245


def test_a_damaged_cache_is_made_anew(nette):
    first = load("imagenette", nette, size=16).train_images.copy()
    for cache in caches(nette):
        cache.write_bytes(cache.read_bytes()[:200])
    assert np.array_equal(load("imagenette", nette, size=16).train_images, first)


def test_the_cache_goes_to_the_home_folder_where_the_data_cannot_be_written(nette, tmp_path):
    (nette / ".paraaegis-cache").write_text("in the way")
    load("imagenette", nette, size=16)
    assert len(list((tmp_path / "home" / ".cache" / "paraaegis").glob("*.npy"))) == 2


def test_without_any_place_for_the_cache_imagenette_is_refused(nette, tmp_path):
    (nette / ".paraaegis-cache").write_text("in the way")
    (tmp_path / "home").write_text("in the way")
    with pytest.raises(DataError, match="writable folder"):
        load("imagenette", nette, size=16)


def test_progress_is_logged_ten_times(caplog):
    caplog.set_level("INFO")
    for done in range(1, 101):
        imagenette.log_progress(done, 100)
    assert len(caplog.messages) == 10
    assert caplog.messages[-1] == "decoded 100 of 100 images"


@pytest.mark.parametrize("content", [b"", b"no image", None], ids=["empty", "text", "truncated"])
def test_a_broken_photograph_is_refused_by_name_and_leaves_no_cache(nette, content):
    path = nette / "train" / WNIDS[3] / f"{WNIDS[3]}_1.JPEG"
    if content is None:
        Image.effect_noise((64, 64), 90).save(path)
        content = path.read_bytes()[:900]
    path.write_bytes(content)
    with pytest.raises(DataError, match=path.name):
        load("imagenette", nette, size=16)
    assert caches(nette) == []


def test_a_missing_imagenette_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"train and val in .*nowhere.*github.com/fastai/imagenette"):
        load("imagenette", tmp_path / "nowhere")


def test_several_copies_of_imagenette_are_not_chosen_from(nette):
    for part in ("train", "val"):
        (nette.parent / "imagenette2-320" / part).mkdir(parents=True)
    with pytest.raises(DataError, match=r"imagenette2-160, imagenette2-320; set data\.folder"):
        load("imagenette", nette.parent)


def test_an_imagenette_without_all_its_classes_is_refused(nette):
    for path in (nette / "val" / WNIDS[0]).iterdir():
        path.unlink()
    with pytest.raises(DataError, match=rf"no \.JPEG files in .*{WNIDS[0]}"):
        load("imagenette", nette, size=16)
    (nette / "val" / WNIDS[0]).rmdir()
    with pytest.raises(DataError, match="10 class folders, got 9"):
        load("imagenette", nette, size=16)
