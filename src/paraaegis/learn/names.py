"""The names of data sets and models, available without loading torch."""

from __future__ import annotations

DATASET_NAMES = ("digits", "fashion-mnist", "cifar10", "imagenette")
GROUP_NORM = {"cnn": "cnn-gn", "resnet18": "resnet18-gn"}  # the same networks without BatchNorm
MODEL_NAMES = ("mlp", "cnn", "resnet18", "cnn-tanh", "cnn-gn", "resnet18-gn")
