"""Model, data, training and evaluation, in plain PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


def make_model() -> nn.Module:
    """A small convolutional network with BatchNorm."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def load_part(part: int, parts: int) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels of one node: four fifths to train on, the rest to test on."""
    digits = load_digits()
    images = torch.tensor(digits.images[part::parts], dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target[part::parts])
    cut = len(labels) * 4 // 5
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def train(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], epochs: int, lr: float) -> float:
    """Train in place; the last batch's loss."""
    images, labels = data
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            optimiser.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimiser.step()
    return loss.item()


def evaluate(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Accuracy."""
    images, labels = data
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())
