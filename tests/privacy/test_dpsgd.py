"""DP-SGD: per-example gradients, clipping, noise, and no side effects on the network."""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest
from torch import nn

from vitrail.nets.dcgan import DcganDiscriminator
from vitrail.privacy import dpsgd
from vitrail.privacy.noise import seeded
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

SHAPE = (1, 16, 16)  # large enough for a normalisation layer


def draw(seed):
    return torch.Generator().manual_seed(seed)


def network(classes=10, seed=1, dtype=torch.float32, scale=0.3):
    net = DcganDiscriminator(SHAPE, classes, 8, "group").to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=draw(seed), dtype=dtype))
    return net.train()


def examples(n, classes=10, seed=2, dtype=torch.float32):
    x = torch.randn(n, *SHAPE, generator=draw(seed), dtype=dtype)
    return x, torch.randint(classes, (n,), generator=draw(seed)) if classes else None


def loss(net, x, y=None):
    return F.softplus(-net(x, y))


def one_by_one(net, of, inputs):
    """The reference: one backward pass per example."""
    found = []
    for i in range(len(inputs[0])):
        value = of(net, *(None if t is None else t[i : i + 1] for t in inputs)).sum()
        found.append(torch.autograd.grad(value, list(net.parameters())))
    return [torch.stack(g) for g in zip(*found, strict=True)]


def close(a, b, tolerance=1e-12):
    return all(torch.allclose(u, v, rtol=0, atol=tolerance * (1 + v.abs().max())) for u, v in zip(a, b, strict=True))


@pytest.mark.parametrize("how", ["hooks", "func"])
@pytest.mark.parametrize("classes", [0, 10])
def test_per_example_gradients_equal_those_of_a_loop(how, classes):
    net, inputs = network(classes, dtype=torch.float64), examples(7, classes, dtype=torch.float64)
    plain = one_by_one(net, loss, inputs)
    assert close(dpsgd.per_example_gradients(net, loss, inputs, how), plain)
    assert not close(dpsgd.per_example_gradients(net, loss, (inputs[0].flip(0), inputs[1]), how), plain)


def test_a_loss_that_contains_a_gradient_has_per_example_gradients():
    """A gradient penalty: in the second backward pass, hooks would count twice."""
    net, inputs = network(dtype=torch.float64), examples(5, dtype=torch.float64)

    def with_func(net, x, y):
        slope = torch.func.grad(lambda x: net(x, y).sum())(x)
        return loss(net, x, y) + 10 * (slope.flatten(1).norm(dim=1) - 1).square()

    def reference(net, x, y):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(x, y).sum(), x, create_graph=True)
        return loss(net, x, y) + 10 * (slope.flatten(1).norm(dim=1) - 1).square()

    assert close(dpsgd.per_example_gradients(net, with_func, inputs, "func"), one_by_one(net, reference, inputs), 1e-10)


class Scale(nn.Module):
    """A layer that Opacus does not support."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor([2.0, 3.0], dtype=torch.float64))

    def forward(self, x):
        return x * self.by


def test_a_layer_that_opacus_does_not_support_has_gradients():
    net = nn.Sequential(nn.Linear(3, 2), Scale(), nn.Linear(2, 1)).double()
    inputs = (torch.randn(4, 3, generator=draw(1), dtype=torch.float64),)
    of = lambda net, x: net(x).square().flatten()  # noqa: E731
    assert close(dpsgd.per_example_gradients(net, of, inputs), one_by_one(net, of, inputs))


def seen(net):
    """What could change on a network: attributes and hooks of layers, attributes of parameters."""
    layers = [{k: (len(v) if hasattr(v, "__len__") else v) for k, v in vars(m).items()} for m in net.modules()]
    return layers, [dict(vars(p)) for p in net.parameters()], [p.grad for p in net.parameters()]


def test_the_network_is_unchanged_even_when_a_loss_fails():
    net, inputs = network(), examples(5)
    before = seen(net)
    dpsgd.per_example_gradients(net, loss, inputs, "hooks")
    assert seen(net) == before

    def fails(net, x, y):
        raise ZeroDivisionError(len(net(x, y)))

    with pytest.raises(ZeroDivisionError):
        dpsgd.per_example_gradients(net, fails, inputs, "hooks")
    assert seen(net) == before
    F.softplus(net(*inputs)).sum().backward()  # and it can still be trained
    assert not any(hasattr(p, "grad_sample") for p in net.parameters())


def test_no_global_randomness_is_used():
    net, inputs = network(), examples(5)  # layers draw their first weights from the global generator
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    dpsgd.private_sum(net, loss, inputs, 1.0, 1.0, seeded(Rng((1,))))
    dpsgd.per_example_gradients(net, loss, inputs, "func")
    assert torch.get_rng_state().equal(before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_batch_norm_is_refused_with_a_remedy():
    with pytest.raises(VitrailError, match=r"GroupNorm.*d_norm=group"):
        dpsgd.per_example_gradients(DcganDiscriminator(SHAPE, 10, 8), loss, examples(3))


def test_the_sum_is_that_of_clipped_gradients_for_any_chunks():
    net, inputs = network(), examples(2 * dpsgd.CHUNK + 5)
    flat = torch.cat([g.flatten(1) for g in one_by_one(net, loss, inputs)], 1).double()
    clip = float(flat.norm(dim=1).median())  # so that half of them are clipped
    plain = (flat * (clip / flat.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    assert torch.allclose(dpsgd.clipped_sum(net, loss, inputs, clip), plain, rtol=1e-4, atol=1e-5 * clip)


def extreme_examples(seed):
    """Examples that might exceed the bound: huge, constant, at the limit of floats, not finite."""
    x, y = examples(1, seed=seed)
    worst = [x, x * 1e3, x * 1e10, x * 1e30, x * 1e38, torch.zeros_like(x), torch.ones_like(x) * -1]
    return [(w, y) for w in worst] + [(torch.full_like(x, v), y) for v in (math.inf, math.nan, 3e38)]


@pytest.mark.parametrize("clip", [1.0, 1e-3])
def test_no_example_changes_a_sum_by_more_than_the_bound(clip):
    most = 0.0
    for seed in range(6):
        net = network(seed=seed, scale=(0.02, 0.3, 1.0, 5.0, 30.0, 1e4)[seed])
        (x, y), many = examples(6, seed=seed + 50), dpsgd.clipped_sum
        without = many(net, loss, (x, y), clip)
        for extra, label in extreme_examples(seed):
            by = many(net, loss, (torch.cat([x, extra]), torch.cat([y, label])), clip) - without
            assert by.isfinite().all()
            assert float(by.norm()) <= clip
            most = max(most, float(by.norm()))
    assert most > 0.999 * clip  # the bound is reached, so the search could have found more


def test_noise_has_the_stated_sigma():
    net, inputs = network(), examples(4)
    exact = dpsgd.clipped_sum(net, loss, inputs, 0.5).numpy()
    noise = dpsgd.private_sum(net, loss, inputs, 0.5, 3.0, seeded(Rng((1,)))).numpy() - exact
    assert kstest(noise / 3.0, "norm").pvalue > 1e-4
    assert noise.std() == pytest.approx(3.0, rel=5 / math.sqrt(2 * noise.size))
    other = dpsgd.private_sum(net, loss, inputs, 0.5, 3.0, seeded(Rng((2,)))).numpy() - exact
    assert abs(np.corrcoef(noise, other)[0, 1]) < 5 / math.sqrt(noise.size)


def test_an_empty_sample_gives_only_noise():
    net, inputs = network(), examples(0)
    assert not dpsgd.clipped_sum(net, loss, inputs, 1.0).any()
    noise = dpsgd.private_sum(net, loss, inputs, 1.0, 2.0, seeded(Rng((1,)))).numpy()
    assert noise.std() == pytest.approx(2.0, rel=5 / math.sqrt(2 * noise.size))


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5])
def test_examples_are_sampled_independently_at_the_stated_rate(rate):
    n, draws, source = 400, 300, seeded(Rng((1,)))
    member = np.zeros((draws, n))
    for row in member:
        row[dpsgd.poisson_sample(source, n, rate)] = 1
    spread = math.sqrt(rate * (1 - rate))
    assert abs(member.mean() - rate) < 5 * spread / math.sqrt(member.size)
    sizes = member.sum(1)  # binomial, not fixed
    assert sizes.var() == pytest.approx(n * rate * (1 - rate), rel=5 * math.sqrt(2 / draws))


def test_a_rate_of_one_samples_all_and_a_tiny_rate_none():
    assert dpsgd.poisson_sample(seeded(Rng((1,))), 50, 1.0).tolist() == list(range(50))
    assert dpsgd.poisson_sample(seeded(Rng((1,))), 50, 1e-12).size == 0
    assert dpsgd.poisson_sample(seeded(Rng((1,))), 0, 0.5).size == 0


def test_whether_an_example_is_sampled_does_not_depend_on_the_others():
    few, more = (dpsgd.poisson_sample(seeded(Rng((3,))), n, 0.3) for n in (40, 41))
    assert few.tolist() == [i for i in more if i < 40]
