"""Five hospitals of unequal size that see different patients (scikit-learn's breast cancer data).

Each trains its own torch loop; what it measures on its own hold-out patients is AUC and the recall of both classes.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import recall_score, roc_auc_score
from torch import nn

from paraaegis import torch_learner

PATIENTS = {"university": 240, "city": 140, "north": 95, "coast": 60, "valley": 34}
MALIGNANT = {"university": 0.5, "city": 0.35, "north": 0.3, "coast": 0.2, "valley": 0.1}  # of a hospital's patients


def admitted():
    """The rows of each hospital's patients."""
    labels = load_breast_cancer().target  # 0: malignant
    rng = np.random.default_rng(0)
    sick, well = (list(rng.permutation(np.flatnonzero(labels == kind))) for kind in (0, 1))
    rows = {}
    for name, count in PATIENTS.items():
        ill = round(MALIGNANT[name] * count)
        rows[name] = rng.permutation([sick.pop() for _ in range(ill)] + [well.pop() for _ in range(count - ill)])
    return rows


def load(client):
    features, labels = load_breast_cancer(return_X_y=True)
    own = admitted()[client]
    features, labels = features[own], labels[own]
    features = (features - features.mean(axis=0)) / features.std(axis=0)  # by this hospital's own patients
    return torch.tensor(features, dtype=torch.float32), torch.tensor(labels)


def make(config, client):
    inputs, labels = load(client)
    cut = len(labels) * 3 // 4
    inputs = (inputs - inputs[:cut].mean(dim=0)) / inputs[:cut].std(dim=0)  # by this hospital's own patients alone
    torch.manual_seed(config.seed)  # all hospitals build the same first model
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train(model):
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[:cut]), labels[:cut])
            loss.backward()
            optimizer.step()
        return {"loss": loss.item()}

    def evaluate(model):
        scores, truth = model(inputs[cut:]).softmax(dim=1)[:, 1], labels[cut:]
        recalls = {
            f"recall_{name}": recall_score(truth, scores > 0.5, pos_label=kind, zero_division=np.nan)
            for kind, name in enumerate(("malignant", "benign"))
        }
        # With patients of one class alone there is no AUC. NaN is left out of the mean over the hospitals.
        auc = roc_auc_score(truth, scores) if len(truth.unique()) == 2 else float("nan")
        return {"auc": auc, **recalls}

    return torch_learner(model, train=train, evaluate=evaluate, samples=cut, keep=[optimizer])
