"""The models, and models as vectors and files."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from paraaegis.errors import ConfigError, UpdateError
from paraaegis.learn.models import MODELS, build
from paraaegis.learn.train import from_vector, to_vector
from paraaegis.learn.vector import save_state

SHAPES = {name: (32, 32, 3) if "resnet" in name else (8, 8, 1) for name in MODELS}


def count(model):
    parameters = sum(p.numel() for p in model.parameters())
    return parameters, sum(b.numel() for b in model.buffers() if b.is_floating_point())


def test_the_cnn_on_digits_has_the_known_number_of_values():
    assert sum(count(build("cnn", (8, 8, 1), 10, 0))) == 151_690


def test_resnet18_has_the_known_number_of_parameters_and_buffers():
    model = build("resnet18", (128, 128, 3), 10, 0)
    assert count(model) == (11_181_642, 9_600)
    assert to_vector(model).size == 11_191_242


def torchvision_keys():
    def norm(name):
        return [f"{name}.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    yield from ("conv1.weight", *norm("bn1"))
    for block in (f"layer{layer}.{index}" for layer in (1, 2, 3, 4) for index in (0, 1)):
        yield from (f"{block}.conv1.weight", *norm(f"{block}.bn1"))
        yield from (f"{block}.conv2.weight", *norm(f"{block}.bn2"))
        if block in ("layer2.0", "layer3.0", "layer4.0"):
            yield from (f"{block}.downsample.0.weight", *norm(f"{block}.downsample.1"))
    yield from ("fc.weight", "fc.bias")


def test_resnet18_has_torchvisions_keys():
    assert list(build("resnet18", (32, 32, 3), 10, 0).state_dict()) == list(torchvision_keys())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 13, 3), (28, 28, 1), (32, 32, 3)])
def test_a_model_answers_with_one_logit_a_class_for_any_image_size(name, shape):
    height, width, channels = shape
    logits = build(name, shape, 7, 0)(torch.rand(2, channels, height, width))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_weights(name):
    torch.manual_seed(1)
    first = to_vector(build(name, SHAPES[name], 10, 5))
    torch.manual_seed(2)
    assert np.array_equal(first, to_vector(build(name, SHAPES[name], 10, 5)))
    assert not np.array_equal(first, to_vector(build(name, SHAPES[name], 10, 6)))


def test_the_first_model_of_a_seed_never_changes():
    """Silos with other versions of this package, torch or numpy must start from the same model."""
    weights = to_vector(build("cnn", (8, 8, 1), 10, 0))
    assert hashlib.sha256(weights.astype("<f4").tobytes()).hexdigest()[:16] == "9db4dca90ce881c0"


def test_building_a_model_leaves_torchs_generator_alone():
    before = torch.random.get_rng_state()
    build("resnet18", (32, 32, 3), 10, 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_fresh_model_has_weights_of_the_usual_scale():
    model = build("resnet18", (32, 32, 3), 10, 0)
    assert model.conv1.weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.02)
    assert model.fc.weight.abs().max().item() == pytest.approx(512**-0.5, rel=0.01)
    assert (model.bn1.weight == 1).all()
    assert (model.bn1.running_var == 1).all()
    assert model.bn1.num_batches_tracked == 0


def test_an_unknown_model_or_a_tiny_image_is_refused():
    with pytest.raises(ConfigError, match="mlp, cnn, resnet18, cnn-tanh, cnn-gn, resnet18-gn, got 'vgg'"):
        build("vgg", (8, 8, 1), 10, 0)
    with pytest.raises(ConfigError, match="at least 8×8 pixels, got 7×9"):
        build("cnn", (7, 9, 1), 10, 0)


@pytest.mark.parametrize("name", MODELS)
def test_a_vector_goes_into_a_model_and_comes_back(name):
    model = build(name, SHAPES[name], 10, 0)
    vector = np.random.default_rng(0).random(to_vector(model).size, dtype=np.float32)
    vector.flags.writeable = False
    from_vector(model, vector)
    assert np.array_equal(to_vector(model), vector)
    model.to(memory_format=torch.channels_last)
    assert np.array_equal(to_vector(model), vector)


def test_a_vector_holds_the_floating_point_entries_in_the_order_of_the_state_dict():
    model = build("cnn", (8, 8, 1), 10, 0)
    entries = [t.flatten() for t in model.state_dict().values() if t.dtype == torch.float32]
    assert np.array_equal(to_vector(model), torch.cat(entries).numpy())
    assert len(entries) == len(model.state_dict()) - 2


def test_a_vector_is_a_copy():
    model = build("mlp", (8, 8, 1), 10, 0)
    vector = to_vector(model)
    vector[:] = 0
    assert to_vector(model).any()


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(UpdateError, match=r"9610 values, got shape \(9609,\)"):
        from_vector(build("mlp", (8, 8, 1), 10, 0), np.zeros(9609, np.float32))


@pytest.mark.parametrize("name", MODELS)
def test_plain_torch_loads_a_saved_model(name, tmp_path):
    weights = to_vector(build(name, SHAPES[name], 10, 3))
    path = tmp_path / "model.pt"
    save_state(path, build(name, SHAPES[name], 10, 0), weights)
    model = build(name, SHAPES[name], 10, 0)
    model.load_state_dict(torch.load(path, weights_only=True))
    assert np.array_equal(to_vector(model), weights)
    assert list(tmp_path.iterdir()) == [path]
