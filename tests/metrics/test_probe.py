"""The linear probe is a logistic regression, fitted on one set and tested on another."""

import numpy as np
import torch

from vitrail.metrics.distances import probe


def plain_softmax_regression(x, y, test, classes, c=0.1):
    """The same objective, ½|w|² + C Σ cross-entropy on standardised features, minimised by another optimiser."""
    mean, std = x.mean(0), x.std(0, correction=0)
    x, test = ((v - mean) / std for v in (x.double(), test.double()))
    w = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w, b], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = 0.5 * w.square().sum() + c * torch.nn.functional.cross_entropy(x @ w + b, y, reduction="sum")
        value.backward()
        return value

    optimizer.step(loss)
    return (test @ w + b).detach().argmax(1)


def clouds(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    centres = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    return centres[y] * 1.2 + torch.randn(n, 3, generator=draw), y


def test_its_answers_are_those_of_a_plain_softmax_regression():
    (x, y), (test, truth) = clouds(300, 0), clouds(400, 1)
    right = probe(x, y, test, truth)
    plain = (plain_softmax_regression(x, y, test, 3) == truth).double().numpy()
    assert np.mean(right == plain) > 0.99  # a point on the border may fall to either side
    assert 0.6 < right.mean() < 0.95


def test_a_probe_of_one_class_knows_nothing_else():
    x, y = clouds(30, 0)
    assert probe(x, torch.zeros(30, dtype=torch.int64), x, y).mean() == (y == 0).double().mean()
