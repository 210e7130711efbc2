"""What a loop keeps is saved with the run; what could not be saved is refused when it is attached."""

import numpy as np
import pytest
import torch
from torch import nn

from paraaegis.errors import ConfigError, RunError
from paraaegis.learn.attach import torch_learner


def noisy(seed=0):
    """A learner whose loop draws from a generator of its own."""
    model, generator = nn.Linear(2, 1), torch.Generator().manual_seed(seed)

    def train(model):
        with torch.no_grad():
            model.weight.add_(torch.randn(1, 2, generator=generator))

    return torch_learner(model, train=train, samples=1, keep=[generator])


def test_a_generator_continues_after_a_restart():
    one, other = noisy(), noisy(seed=1)
    weights = np.zeros(3, dtype=np.float32)
    one.train(weights, 1)
    other.load(one.state())
    np.testing.assert_array_equal(other.train(weights, 2)[0], one.train(weights, 2)[0])


@pytest.mark.parametrize(("keep", "said"), [
    (torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), r"must be a list, such as keep=\[optimizer\], got SGD"),
    (nn.Sequential(nn.Linear(1, 1)), "must be a list.* got Sequential"),
    ([0.1], "must list objects with state_dict and load_state_dict.* got float"),
    ([np.random.default_rng(0)], "or generators of torch, got Generator"),
])  # fmt: skip
def test_what_cannot_be_kept_is_refused_at_once(keep, said):
    with pytest.raises(ConfigError, match=said):
        torch_learner(nn.Linear(2, 1), train=print, samples=1, keep=keep)


def test_the_state_of_another_kind_of_object_is_refused():
    model = nn.Linear(2, 1)
    other = torch_learner(model, train=print, samples=1, keep=[torch.optim.SGD(model.parameters(), 0.1)])
    for one, state in ((noisy(), other.state()), (other, noisy().state())):
        with pytest.raises(RunError, match="does not fit"):
            one.load(state)
