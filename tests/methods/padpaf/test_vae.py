"""The β-VAE with private style: its terms against plain formulas, and which parts stay private."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from tests.federation import digits, federate, quick
from vitrail.methods.base import ServerMessage, Sums
from vitrail.methods.padpaf.algorithm import latents
from vitrail.methods.padpaf.vae import code_twins, elbo, join_decoder
from vitrail.models.model_file import open_model
from vitrail.nets.barlow_twins import barlow_twins
from vitrail.nets.content_style import initialise
from vitrail.nets.flat import tensor_sizes, to_vector
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.utils.state import pack

CLASSES = tuple("0123456789")


def networks(method):
    return {name: initialise(net, Rng((3,)).child(name).torch()) for name, net in method.networks().items()}


def test_private_style_never_leaves_the_client(tmp_path):
    """Eight numbers of every private tensor, plain and times the client's weight, in both number formats of the wire."""
    method = quick("padpafvae")
    fed, _, traffic = federate(method, tmp_path)
    seen = b"".join(data for _, data in traffic.requests + traffic.replies)
    seen += b"".join(t.numpy().tobytes() for t in pack(fed.tree())[0].values())
    assert fed.server["encoder"][:8].tobytes() in seen  # the search finds sent values
    nets = method.networks()
    for client in ("client-0", "client-1", "client-2"):
        state = load_state(tmp_path / f"{client}.safetensors")["state"]
        assert set(state) == {"style", "style_encoder", "optimizer"}
        pieces = [t.numpy().ravel() for t in pack(state["optimizer"])[0].values()]
        for name in ("style", "style_encoder"):
            pieces += np.split(state[name], np.cumsum(tensor_sizes(nets[name]))[:-1])
        marks = [
            some.tobytes()
            for piece in pieces
            if len(np.unique(piece)) >= 8
            for scaled in (piece, piece * np.float32(24 / 100))
            for some in (scaled[int(np.flatnonzero(scaled)[0]) :][:8].astype(f) for f in ("<f4", "<f2"))
            if len(np.unique(some)) >= 4
        ]
        assert len(marks) > 50
        assert not [mark for mark in marks if mark in seen]
        leak = seen + (state["style"] * np.float32(24 / 100)).astype("<f2").tobytes()
        assert [mark for mark in marks if mark in leak]


def test_the_terms_equal_equation_16():
    method = quick("padpafvae")
    nets = networks(method)
    decoder = join_decoder(nets).train()
    x, y = torch.rand(5, 1, 8, 8) * 2 - 1, torch.arange(5)
    noise = torch.randn(2, 5, method.latent_dim)
    reconstruction, divergence = elbo(nets, decoder, x, y, noise)
    plain, z = 0.0, []
    for name, e in zip(("encoder", "style_encoder"), noise, strict=True):
        mu, log_variance = nets[name](x)
        posterior = Normal(mu, torch.exp(log_variance).sqrt())
        plain += kl_divergence(posterior, Normal(0.0, 1.0)).sum() / 5
        z.append(posterior.mean + posterior.stddev * e)
    assert divergence.item() == pytest.approx(plain.item(), rel=1e-5)
    x_hat = decoder(torch.cat(z, 1), y)
    up_to_a_constant = -Normal(x_hat, 1.0).log_prob(x).sum() / 5 - 64 / 2 * np.log(2 * np.pi)
    assert reconstruction.item() == pytest.approx(up_to_a_constant.item(), rel=1e-5)


def test_twins_compare_codes_and_no_gradient_flows_through_generated_images():
    method = quick("padpafvae")
    nets = networks(method)
    decoder = join_decoder(nets).train()
    z, y = latents(method, torch.arange(10), torch.Generator().manual_seed(1), pairs=True)
    loss = code_twins(nets, decoder, (z, y))
    x = decoder(z, y).detach().chunk(3)
    content, style = nets["encoder"], nets["style_encoder"]
    plain = barlow_twins(content(x[0])[0], content(x[1])[0]) + barlow_twins(style(x[0])[0], style(x[2])[0])
    assert loss.item() == pytest.approx(plain.item(), rel=1e-4)
    loss.backward()
    assert all(p.grad is None for p in decoder.parameters())
    assert all(p.grad is not None for net in (content, style) for p in net.parameters())


def test_reconstruction_improves_over_rounds():
    method = quick("padpafvae", local_epochs=6, lr=5e-3, width=8, lam=0.01, beta=0.1, server_opt="average")
    server, state, found = method.server_init(Rng((1,))), {}, []
    data = digits().train.take(np.arange(64))
    for t in range(3):
        parts = {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()}
        state, reply = method.client_round(state, ServerMessage(t, parts), data, Rng((t,)))
        server = method.finish_round(server, Sums(reply.parts, 1), Rng((t,)))
        found.append(reply.parts["metric.reconstruction"][0])
    pixels = torch.from_numpy(data.pixels).float() / 127.5 - 1
    mean_image = ((pixels - pixels.mean(0)) ** 2).sum((1, 2, 3)).mean().item() / 2
    assert found[2] < found[1] < found[0]
    assert found[2] < mean_image


def test_each_client_has_a_personal_generator(tmp_path):
    method = quick("padpafvae")
    fed, *_ = federate(method, tmp_path, rounds=1)
    own = [load_state(tmp_path / f"client-{k}.safetensors")["state"] for k in (0, 1)]
    a, b = (open_model(method.export_models(fed.server, state)["generator"], CLASSES) for state in own)
    assert not a.sample(4).equal(b.sample(4))
    assert to_vector(a.net.content) == pytest.approx(to_vector(b.net.content))
