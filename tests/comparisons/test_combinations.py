"""Methods, splits, data sets and models combine through the configuration alone."""

from itertools import product

import numpy as np
import pytest
from PIL import Image

from paraaegis.comparisons.compare import compare
from paraaegis.comparisons.preset import cells_of, only, preset_names, read_preset
from paraaegis.config import make_config
from paraaegis.launch import run
from paraaegis.methods import METHODS

PAPER = sorted({*preset_names()} - {"quick", "paper-clients"})  # the latter's rows need up to 50 clients


@pytest.mark.parametrize(("method", "model", "split"), [
    (method, model, split) for method, (model, split) in product(METHODS, [("mlp", "dirichlet"), ("cnn", "iid")])
])  # fmt: skip
def test_every_method_combines_with_every_model_and_split(method, model, split, tmp_path):
    settings = [f"protect.method={method}", f"model.name={model}", f"data.split={split}", "data.alpha=1.0",
                "federation.rounds=1", "federation.clients=5", "train.epochs=1"]  # fmt: skip
    result = run(make_config({}, settings), tmp_path / "run")
    assert 0 <= result.metrics["accuracy"] <= 1


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Ten classes of a few noisy photographs each, in Imagenette's layout."""
    folder, rng = tmp_path_factory.mktemp("imagenette"), np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 1)):
        for label in range(10):
            path = folder / part / f"n{label:08}"
            path.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(path / f"{number}.JPEG", quality=30)
    return folder


@pytest.mark.parametrize(("method", "clients"), [("paraaegis-static", 2), ("lwe-secagg", 3), ("paraaegis-feedback", 2)])
def test_resnet18_on_photographs_runs_its_first_round(method, clients, photographs, tmp_path):
    """Two chunks and more of ciphertext: the worker processes take part."""
    settings = [f"protect.method={method}", "model.name=resnet18", "data.name=imagenette", "data.split=dirichlet",
                f"data.folder={photographs}", f"federation.clients={clients}", f"federation.quorum={clients}",
                "federation.rounds=1", "train.epochs=1", "protect.ratio=0.05"]  # fmt: skip
    result = run(make_config({}, settings), tmp_path / "run")
    assert 0 <= result.metrics["accuracy"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_presets_run_their_first_round(name, photographs, tmp_path):
    """With as few clients as every method allows."""
    settings = [f"data.folder={photographs}", "federation.rounds=1", "train.epochs=1", "federation.min_samples=2"]
    preset = read_preset(name)
    cells = only(cells_of(preset, [*settings, "federation.clients=3"]), [next(iter(preset.splits))], [])
    from contextlib import nullcontext

    table = compare(name, cells, tmp_path / "out", False, lambda _n, _r: nullcontext(lambda _: None))
    assert len(table.rows) == len(cells)


@pytest.mark.slow
def test_the_quick_comparison_tells_the_papers_story(tmp_path):
    from contextlib import nullcontext

    cells = only(cells_of(read_preset("quick")), ["iid"], [])
    table = compare("quick", cells, tmp_path / "out", False, lambda _n, _r: nullcontext(lambda _: None))
    accuracy = {row.method: row.value for row in table.rows}
    assert accuracy.keys() == METHODS.keys()
    assert abs(accuracy["ckks-fedavg"] - accuracy["fedavg"]) < 1
    assert abs(accuracy["paraaegis-feedback"] - accuracy["fedavg"]) < 2
    for method in ("dp-fedavg", "serial", "varying-dp", "lwe-secagg"):
        assert accuracy[method] < accuracy["paraaegis-static"] - 20
    assert accuracy["paraaegis-static"] < accuracy["fedavg"]
