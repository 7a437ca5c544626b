"""PaDPaF: which parameters are federated and which stay private, and its losses against plain formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import vitrail
from tests.federation import digits, federate, quick, same
from vitrail.cli.main import app
from vitrail.experiment.personal import fixed, load_joined, load_personal
from vitrail.methods.base import Model, ServerMessage, Sums
from vitrail.methods.padpaf import algorithm
from vitrail.methods.padpaf.losses import d_loss, g_loss
from vitrail.models.model_file import load, open_model, save_model
from vitrail.nets.barlow_twins import OFF_DIAGONAL, barlow_twins
from vitrail.nets.content_style import initialise
from vitrail.nets.flat import tensor_sizes, to_vector
from vitrail.nets.spectral_discriminator import warm_up_spectral_norm
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.utils.state import pack
from vitrail.utils.state import save as save_state
from vitrail.wire.message import decode

CLASSES = tuple("0123456789")
FEDERATED = algorithm.PaDPaF.content_networks
SOME = digits().train.take(np.arange(40))


def request(method, server=None, t=0):
    server = server or method.server_init(Rng((1,)))
    return ServerMessage(t, {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()})


def private_of(folder, client="client-0"):
    return load_state(folder / f"{client}.safetensors")["state"]


def marks(method, state):
    """Eight numbers of every private tensor, plain and times the client's weight, in both number formats of the wire."""
    nets = {name: net for name, net in method.networks().items() if name in method.style_networks}
    pieces = [piece for name, net in nets.items() for piece in np.split(state[name], np.cumsum(tensor_sizes(net))[:-1])]
    pieces += [t.numpy().ravel() for t in pack({"o": state["optimizers"], "p": state["power_iteration"]})[0].values()]
    pieces = [piece for piece in pieces if len(np.unique(piece)) >= 8]  # constants may occur elsewhere
    assert len(pieces) > 50
    for piece in pieces:
        at = int(np.flatnonzero(piece)[0])
        for scaled in (piece, piece * np.float32(24 / 100)):
            parts = [scaled[at : at + 8].astype(f) for f in ("<f4", "<f2")]
            yield from (part.tobytes() for part in parts if len(np.unique(part)) >= 4)  # not rounded to zero


# -- private parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label_maps", ["private", "federated"])
def test_private_style_never_leaves_the_client(tmp_path, label_maps):
    method = quick("padpaf", label_maps=label_maps)
    fed, _, traffic = federate(method, tmp_path)
    seen = b"".join(data for _, data in traffic.requests + traffic.replies)
    seen += b"".join(t.numpy().tobytes() for t in pack(fed.tree())[0].values())
    assert fed.server["generator"][:8].tobytes() in seen  # the search finds sent values
    for client in ("client-0", "client-1", "client-2"):
        state = private_of(tmp_path, client)
        assert not [mark for mark in marks(method, state) if mark in seen]
        leak = seen + (state["style"] * np.float32(24 / 100)).astype("<f2").tobytes()
        assert [mark for mark in marks(method, state) if mark in leak]


def test_private_tensors_are_stored_only_in_the_clients_folder(tmp_path):
    run = vitrail.train(
        "padpaf", data="digits", size=8, partition="domains:invert,blur", width=4, latent_dim=8, rounds=2, workers=1,
        out=str(tmp_path / "run"), eval_every=0,
    )  # fmt: skip
    method = quick("padpaf", style_depth=4)
    outside = b"".join(p.read_bytes() for p in run.folder.rglob("*") if p.is_file() and p.parent.name != "clients")
    for client in ("invert", "blur"):
        assert not [mark for mark in marks(method, private_of(run.folder / "clients", client)) if mark in outside]


def test_the_server_receives_only_parameters_of_content(tmp_path):
    method = quick("padpaf")
    nets = method.networks()
    sizes = {name: sum(p.numel() for p in nets[name].parameters()) for name in FEDERATED}
    _, _, traffic = federate(method, tmp_path, rounds=1)
    sent = {p.name: p.array().size for p in decode(traffic.replies[0][1]).parts}
    assert sent == {**sizes, "weight": 1, "metric.loss_d": 1, "metric.loss_g": 1, "metric.barlow_twins": 1}
    assert not list(nets["generator"].buffers())


def test_a_client_that_is_not_requested_keeps_its_style(tmp_path):
    method = quick("padpaf")
    fed, *_ = federate(method, tmp_path, rounds=1)
    before = private_of(tmp_path, "client-2")
    fed, *_ = federate(method, tmp_path, rounds=1, fed=fed, indices={"client-0": np.arange(24)})
    assert same(private_of(tmp_path, "client-2"), before)
    federate(method, tmp_path, rounds=1, fed=fed)
    assert private_of(tmp_path, "client-2")["t"] == 2 * before["t"]


def test_all_clients_start_with_the_same_style():
    """Line 3 of Algorithm 1, θ_i := θ_0, although the server never has a style."""
    method = quick("padpaf", lr=1e-12)
    a, b = (method.client_round({}, request(method), SOME, Rng((seed,)))[0] for seed in (1, 2))
    assert np.allclose(a["style"], b["style"], atol=1e-9)
    other = method.client_round({}, request(method, method.server_init(Rng((9,)))), SOME, Rng((1,)))[0]
    assert not np.allclose(a["style"], other["style"], atol=1e-3)


# -- losses -------------------------------------------------------------------------------------------------------


def test_barlow_twins_equals_the_formula_on_numpy_correlations():
    rng = np.random.default_rng(0)
    A = rng.normal(2, 3, (32, 5))
    B = A + rng.normal(0, 1, (32, 5))
    C = np.corrcoef(A.T, B.T)[:5, 5:]
    plain = sum((1 - C[i, i]) ** 2 for i in range(5))
    plain += OFF_DIAGONAL * sum(C[i, j] ** 2 for i in range(5) for j in range(5) if i != j)
    assert barlow_twins(torch.tensor(A), torch.tensor(B)).item() == pytest.approx(plain)
    assert OFF_DIAGONAL == 0.005


@pytest.mark.parametrize("form", ["wasserstein", "hinge"])
def test_gan_losses_equal_their_formulas(form):
    real, fake = [2.0, 0.5, -1.0], [-3.0, 0.25]
    if form == "hinge":
        plain = np.mean([max(0, 1 - r) for r in real]) + np.mean([max(0, 1 + f) for f in fake])
    else:
        plain = np.mean(fake) - np.mean(real)
    assert d_loss(torch.tensor(real), torch.tensor(fake), form).item() == pytest.approx(plain)
    assert g_loss(torch.tensor(fake)).item() == pytest.approx(-np.mean(fake))


def networks(method, seed=3):
    nets = {name: initialise(net, Rng((seed,)).child(name).torch()) for name, net in method.networks().items()}
    model = algorithm.ClientGan.of(nets, "cpu")
    warm_up_spectral_norm(model.D)
    return model


def test_the_objective_of_d_equals_equations_9_and_14_computed_separately():
    method = quick("padpaf", loss="wasserstein")
    model = networks(method)
    x, y = torch.rand(5, 1, 8, 8) * 2 - 1, torch.arange(5)
    noise = algorithm.latents(method, torch.arange(10), Rng((4,)).torch(), pairs=True)
    for D in (model.D_c, model.D_s):
        D.blocks.eval(), D.psi.eval(), D.projector.eval()  # in training mode each pass is a step of power iteration
    if model.D_c.embed:
        model.D_c.embed.eval()
    loss, twins, loss_g = method.d_objective(model, (x, y), noise)
    with torch.no_grad():
        fake, same_content, same_style = model.G(*noise).chunk(3)
        y_fake = noise[1][: len(fake)]
        c, s = model.D_c(fake, y_fake).mean(), model.D_s(fake).mean()
        plain = c - model.D_c(x, y).mean() + s - model.D_s(x).mean()
        phi_c, phi_s = model.D_c.features, model.D_s.features
        plain_twins = barlow_twins(model.D_c.project(phi_c(fake)), model.D_c.project(phi_c(same_content)))
        plain_twins += barlow_twins(model.D_s.project(phi_s(fake)), model.D_s.project(phi_s(same_style)))
    assert loss.item() == pytest.approx(plain.item(), abs=1e-5)
    assert loss_g.item() == pytest.approx(-(c + s).item(), abs=1e-5)
    assert twins.item() == pytest.approx(plain_twins.item(), rel=1e-4)


def test_no_gradient_of_d_flows_through_generated_images():
    model = networks(method := quick("padpaf"))
    noise = algorithm.latents(method, torch.arange(10), Rng((4,)).torch(), pairs=True)
    loss, twins, _ = method.d_objective(model, (torch.zeros(3, 1, 8, 8), torch.arange(3)), noise)
    (loss + twins).backward()
    assert all(p.grad is None for p in model.G.parameters())
    assert all(p.grad is not None for p in model.D.parameters())


def test_pairs_share_content_or_style():
    method = quick("padpaf")
    z, y = algorithm.latents(method, torch.arange(10), Rng((4,)).torch(), pairs=True)
    (c, s), (c1, s1), (c2, s2) = (part.chunk(2, 1) for part in z.chunk(3))
    assert c.equal(c1)
    assert s.equal(s2)
    assert not s.equal(s1)
    assert not c.equal(c2)
    assert y.chunk(3)[0].equal(y.chunk(3)[1])
    model = networks(method)
    fake, same_content, _ = model.G(z, y).chunk(3)
    assert not fake.equal(same_content)


# -- steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opt", ["adam", "average"])
def test_the_server_applies_the_mean_update_or_adam_on_it(opt):
    method = quick("padpaf", server_opt=opt, lr_decay=0.9)
    server = method.server_init(Rng((1,)))
    sizes = {name: server[name].size for name in FEDERATED}
    rng = np.random.default_rng(0)
    theta = {name: server[name].astype(np.float64) for name in FEDERATED}
    m, v = ({name: np.zeros(n) for name, n in sizes.items()} for _ in range(2))
    for t in range(3):
        delta = {name: rng.normal(0, 0.01, n) for name, n in sizes.items()}
        sums = {name: 1.7 * d for name, d in delta.items()}
        server = method.finish_round(server, Sums({**sums, "weight": np.array([1.7])}, 3), Rng((t,)))
        for name, g in delta.items():
            if opt == "average":
                theta[name] = theta[name] - g
                continue
            m[name], v[name] = 0.5 * m[name] + 0.5 * g, 0.9 * v[name] + 0.1 * g**2
            first, second = m[name] / (1 - 0.5 ** (t + 1)), v[name] / (1 - 0.9 ** (t + 1))
            theta[name] = theta[name] - 0.01 * 0.9**t * first / (np.sqrt(second) + 1e-8)
    for name in FEDERATED:
        assert np.allclose(server[name], theta[name], atol=1e-6)


def test_d_has_twice_the_learning_rate_of_g():
    """Adam's first step equals its learning rate for any gradient."""
    method = quick("padpaf", batch_size=64, d_steps=1, lr=1e-3, weighting="uniform")
    for t, eta in ((0, 1e-3), (1, 1e-3 * 0.99)):
        _, reply = method.client_round({}, request(method, t=t), SOME, Rng((2,)))
        assert np.abs(reply.parts["generator"]).max() == pytest.approx(eta, rel=1e-2)
        assert np.abs(reply.parts["discriminator"]).max() == pytest.approx(2 * eta, rel=1e-2)


def test_g_is_trained_after_every_t_d_steps_counted_over_rounds():
    method = quick("padpaf", batch_size=64, d_steps=3)  # one step per round
    state, moved = {}, []
    for t in range(6):
        state, reply = method.client_round(state, request(method, t=t), SOME, Rng((t,)))
        moved.append(bool(np.abs(reply.parts["generator"]).max() > 0))
    assert moved == [False, False, True, False, False, True]


def test_a_loopless_client_takes_the_same_number_of_steps_on_average():
    method = quick("padpaf", loopless=True, local_epochs=2, batch_size=8)  # 5 batches per epoch
    steps = [len(list(algorithm.local_batches(method, SOME, Rng((seed,))))) for seed in range(300)]
    assert np.mean(steps) == pytest.approx(10, abs=2)
    assert np.std(steps) == pytest.approx(np.sqrt(10 * 9), rel=0.2)
    assert len(list(algorithm.local_batches(replace(method, loopless=False), SOME, Rng((1,))))) == 10


@pytest.mark.parametrize(
    "setting",
    [{"wire_dtype": "float16"}, {"loopless": True}, {"lam": 0.0}, {"loss": "wasserstein"}],
    ids=str,
)
def test_every_option_trains(tmp_path, setting):
    fast = {"lr": 0.05, "local_epochs": 4}  # within hinge's margin both losses have the same gradient
    plain, *_ = federate(quick("padpaf", **fast), tmp_path / "plain", rounds=1)
    fed, outcomes, _ = federate(quick("padpaf", **fast, **setting), tmp_path / "other", rounds=1)
    assert len(outcomes[0].replied) == outcomes[0].requested
    assert all(np.isfinite(fed.server[name]).all() for name in FEDERATED)
    assert not np.array_equal(fed.server["discriminator"], plain.server["discriminator"])


@pytest.mark.parametrize(("fake_labels", "expected"), [("all", set(range(10))), ("own", {2, 3})])
def test_fakes_have_all_labels_or_the_clients_own(fake_labels, expected):
    method = quick("padpaf", fake_labels=fake_labels, batch_size=200)
    data = digits().train.take(np.flatnonzero(np.isin(digits().train.labels, [2, 3])))
    _, y = algorithm.latents(method, algorithm.labels_of_fakes(method, data), Rng((1,)).torch())
    assert set(y.tolist()) == expected


def test_the_number_of_parameters_is_the_papers():
    """1,182,725 for 32x32 with three channels and no labels; 448 of them scale noise that is omitted here."""
    method = quick("padpaf", width=64, latent_dim=128, style_depth=8)
    method = replace(method, task=replace(method.task, shape=(3, 32, 32), classes=0))
    assert sum(p.numel() for net in method.networks().values() for p in net.parameters()) == 1_182_725 - 448


# -- models -----------------------------------------------------------------------------------------------------


def test_clients_have_personal_generators_and_the_server_one_without_style(tmp_path):
    method = quick("padpaf")
    fed, *_ = federate(method, tmp_path)
    made = {c: method.export_models(fed.server, private_of(tmp_path, c))["generator"] for c in ("client-0", "client-1")}
    a, b = (open_model(m, CLASSES) for m in made.values())
    assert a.z == 2 * open_model(method.export_models(fed.server)["generator"], CLASSES).z
    assert not a.sample(4).equal(b.sample(4))
    save_model(tmp_path / "own.safetensors", made["client-0"], CLASSES, {})
    assert load(tmp_path / "own.safetensors").sample(9, seed=2).equal(a.sample(9, seed=2))
    assert "style" not in method.export_models(fed.server)["generator"].tree


@pytest.mark.parametrize("label_maps", ["private", "federated"])
def test_the_servers_generator_uses_labels_if_label_maps_are_federated(tmp_path, label_maps):
    method = quick("padpaf", label_maps=label_maps)
    fed, *_ = federate(method, tmp_path)
    generator = open_model(method.export_models(fed.server)["generator"], CLASSES)
    ignores = generator.sample(3, label=1).equal(generator.sample(3, label=2))
    assert ignores == (label_maps == "private")
    own = open_model(method.export_models(fed.server, private_of(tmp_path))["generator"], CLASSES)
    assert not own.sample(3, label=1).equal(own.sample(3, label=2))


def test_content_or_style_can_be_fixed(tmp_path):
    method = quick("padpaf")
    fed, *_ = federate(method, tmp_path, rounds=1)
    own = open_model(method.export_models(fed.server, private_of(tmp_path))["generator"], CLASSES)
    both = fixed(own, content=1, style=2).sample(5, label=3)
    assert torch.allclose(both, both[:1].expand_as(both), atol=1e-5)
    for seeds in ({"content": 1}, {"style": 2}):
        some = fixed(own, **seeds).sample(5, label=3)
        assert not torch.allclose(some, some[:1].expand_as(some), atol=1e-3)
    with pytest.raises(VitrailError, match="--client"):
        fixed(open_model(method.export_models(fed.server)["generator"], CLASSES), content=1)


def test_a_clients_generator_is_loaded_from_a_runs_folder(tmp_path):
    tiny = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "workers": 1, "eval_every": 0}
    run = vitrail.train("padpaf", width=4, latent_dim=8, out=str(tmp_path / "run"), **tiny)
    own = load_personal(run.folder, "client-1")
    assert own.about["client"] == "client-1"
    assert not own.sample(3).equal(load_personal(run.folder, "client-0").sample(3))
    with pytest.raises(VitrailError, match="did you mean client-1"):
        load_personal(run.folder, "clint-1")
    plain = vitrail.train(
        "dpfedgan", width=4, latent_dim=8, batch_size=64, g_steps=1, out=str(tmp_path / "plain"), **tiny
    )
    with pytest.raises(VitrailError, match="no personal generators"):
        load_personal(plain.folder, "client-0")


def _tree(path):
    return load_state(path)["model"]


@pytest.mark.parametrize("name", ["padpaf", "ditto", "padpafvae"])
def test_a_model_is_joined_with_a_clients_private_file(name, tmp_path):
    run = vitrail.train(
        name, data="digits", size=8, partition="domains:invert,blur", width=4, latent_dim=8, rounds=1, workers=1,
        out=str(tmp_path / "run"), eval_every=0, labels="ignore",
    )  # fmt: skip
    model, private = tmp_path / "model.safetensors", tmp_path / "north.safetensors"
    model.write_bytes((run.folder / "model.safetensors").read_bytes())
    private.write_bytes((run.folder / "clients" / "invert.safetensors").read_bytes())
    joined = load_joined(model, private)
    assert joined.sample(6, seed=3).equal(load_personal(run.folder, "invert").sample(6, seed=3))
    assert not joined.sample(6, seed=3).equal(load(model).sample(6, seed=3))
    assert fixed(joined, content=1).sample(2).shape == (2, 1, 8, 8)
    drawn = CliRunner().invoke(app, ["sample", str(model), "--client", str(private), "-o", str(tmp_path / "g.png")])
    assert drawn.exit_code == 0, drawn.output
    with pytest.raises(VitrailError, match="has no personal model"):
        load_joined(model, model)
    no_style = tmp_path / "other_method.safetensors"
    save_state(no_style, {**load_state(private), "state": {"generator": np.zeros(3, np.float32)}})
    with pytest.raises(VitrailError, match=r"other_method\.safetensors: it has no style; give the two"):
        load_joined(model, no_style)
    save_model(model, Model("padpaf", _tree(model)), (), {"run": "another"})
    with pytest.raises(VitrailError, match="of another run"):
        load_joined(model, private)
    if name == "padpaf":
        method = quick("padpaf", width=8)
        other = method.export_models(method.server_init(Rng((1,))))["generator"]
        save_model(tmp_path / "other.safetensors", other, CLASSES, {})
        with pytest.raises(VitrailError, match="the same run"):
            load_joined(tmp_path / "other.safetensors", private)


def test_the_command_line_samples_from_a_clients_generator(tmp_path, monkeypatch):
    tiny = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "workers": 1, "eval_every": 0}
    run = vitrail.train("padpaf", width=4, latent_dim=8, out=str(tmp_path / "run"), **tiny)
    monkeypatch.chdir(tmp_path)
    words = ["sample", str(run.folder), "--client", "client-1", "-n", "6", "--label", "3", "-o", "x.npz"]
    drawn = []
    for more in ([], ["--content-seed", "1"], ["--content-seed", "1", "--style-seed", "2"]):
        assert CliRunner().invoke(app, [*words, *more]).exit_code == 0
        with np.load("x.npz") as arrays:
            drawn.append(len(np.unique(arrays["images"], axis=0)))
    assert drawn == [6, 6, 1]


def test_a_run_can_start_from_the_final_state_of_another(tmp_path):
    method = quick("padpaf")
    fed, *_ = federate(method, tmp_path, rounds=1)
    again = method.server_init(Rng((8,)), None, fed.server)
    assert all(np.array_equal(again[name], fed.server[name]) for name in (*FEDERATED, "seed"))
    with pytest.raises(VitrailError, match="another width"):
        quick("padpaf", width=8).server_init(Rng((8,)), None, fed.server)


def test_power_iteration_finds_the_largest_singular_value():
    D = networks(quick("padpaf")).D_c
    warm_up_spectral_norm(D, 200)
    for layer in (D.blocks[0].conv2, D.psi, D.projector[0]):
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(1, abs=1e-3)
    assert to_vector(D).dtype == np.float32
