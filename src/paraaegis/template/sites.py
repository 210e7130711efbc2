"""The model, and each site's data. Replace `load` by your own data and `network` by your own model."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import recall_score, roc_auc_score
from torch import nn

from paraaegis import Config, Learner, torch_learner


def load(config: Config, client: str) -> tuple[torch.Tensor, torch.Tensor]:
    """This site's patients: features and labels. Here, an equal share of a public data set."""
    features, labels = load_breast_cancer(return_X_y=True)
    own = slice(config.names.index(client), None, len(config.names))
    features, labels = features[own], labels[own]
    features = np.log1p(features)  # of similar size, without a statistic of any patient
    return torch.tensor(features, dtype=torch.float32), torch.tensor(labels)


def network(config: Config) -> nn.Module:
    """The model, equal at all sites: the seed must be set right before it is built."""
    torch.manual_seed(config.seed)
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


def make(config: Config, client: str) -> Learner:
    """The learner of one client: the first four fifths of its patients train, the others test."""
    inputs, labels = load(config, client)
    cut = len(labels) * 4 // 5

    def evaluate(model: nn.Module) -> dict[str, float]:
        scores = model(inputs[cut:]).softmax(dim=1)[:, 1]
        return {
            "auc": roc_auc_score(labels[cut:], scores),
            "recall_malignant": recall_score(labels[cut:], scores > 0.5, pos_label=0),
        }

    return torch_learner(network(config), data=(inputs[:cut], labels[:cut]), evaluate=evaluate, lr=0.05)
