"""The battery that every registered method must pass."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from tests.federation import PRIVATE, RUN, digits, federate, quick, same, shares
from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.replies import Failure, read_reply
from vitrail.engines.rounds import Federation
from vitrail.methods import METHODS
from vitrail.methods.baselines.classification import FederatedClassifier
from vitrail.models.model_file import load, load_classifier, open_classifier, open_model, save_model
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.utils.state import save as save_state
from vitrail.wire.message import Kind, Message, decode, encode, make_part

CLASSES = tuple("0123456789")
every = pytest.mark.parametrize("name", [*METHODS, *PRIVATE])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """One federation of each method, played once and looked at by many tests."""
    kept = {}

    def get(name):
        if name not in kept:
            folder = tmp_path_factory.mktemp(name)
            kept[name] = (*federate(quick(name), folder), folder)
            assert all(len(o.replied) == o.requested for o in kept[name][1]), kept[name][1][0].excluded
        return kept[name]

    return get


def a_client(name, folder, held=None, train=None):
    held = np.arange(24) if held is None else held
    train = train or digits().train
    return Client("client-0", quick(name), RUN, Rng((5,)), lambda: train.take(held), folder)


@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_workers_gives_the_same_bits(name, unbroken, tmp_path):
    fed, *_ = unbroken(name)
    assert same(federate(quick(name), tmp_path, workers=2)[0].tree(), fed.tree())


@every
def test_any_order_of_clients_gives_the_same_bits(name, unbroken, tmp_path):
    fed, *_ = unbroken(name)
    assert same(federate(quick(name), tmp_path, reverse=True)[0].tree(), fed.tree())


@pytest.mark.parametrize("name", [name for name in METHODS if quick(name).num_async_rounds])
@pytest.mark.parametrize("workers", [1, 2])
def test_rounds_without_a_barrier_give_the_same_bits(name, workers, unbroken, tmp_path):
    fed, outcomes, *_ = unbroken(name)
    some = federate(quick(name), tmp_path, ahead=3, workers=workers)
    assert same(some[0].tree(), fed.tree())
    assert [asdict(o) for o in some[1]] == [asdict(o) for o in outcomes]


@every
def test_saved_and_resumed_gives_the_bits_of_an_unbroken_run(name, unbroken, tmp_path):
    fed, *_ = unbroken(name)
    half, *_ = federate(quick(name), tmp_path / "clients", rounds=1)
    save_state(tmp_path / "checkpoint", half.tree())
    again = Federation.from_tree(load_state(tmp_path / "checkpoint"))
    assert same(federate(quick(name), tmp_path / "clients", rounds=2, fed=again)[0].tree(), fed.tree())


@every
def test_every_message_survives_a_round_trip(name, unbroken):
    *_, traffic, _ = unbroken(name)
    for _, data in traffic.requests + traffic.replies:
        assert encode(decode(data)) == data


@every
def test_bytes_counted_are_the_bytes_encoded_in_both_directions(name, unbroken):
    _, outcomes, traffic, _ = unbroken(name)
    for counted, sent in (("down", traffic.requests), ("up", traffic.replies)):
        for client in shares():
            assert sum(getattr(o, counted).get(client, 0) for o in outcomes) == sum(
                len(b) for c, b in sent if c == client
            )


@every
def test_only_declared_parts_leave_a_client(name, unbroken):
    *_, traffic, _ = unbroken(name)
    declared = quick(name).reply_spec()
    assert {p.name for _, data in traffic.replies for p in decode(data).parts} == set(declared)


@every
def test_an_undeclared_part_is_kept_back(name, unbroken, tmp_path, monkeypatch):
    *_, traffic, _ = unbroken(name)
    client = a_client(name, tmp_path)
    cls = type(client.method)
    honest = cls.client_round

    def leaky(self, state, message, data, rng):
        state, reply = honest(self, state, message, data, rng)
        return state, replace(reply, parts={**reply.parts, "pixels": data.pixels})

    monkeypatch.setattr(cls, "client_round", leaky)
    answer = client.answer(traffic.requests[0][1])
    assert decode(answer).header.kind is Kind.FAILED
    assert "pixels" in bytes(decode(answer).parts[0].array()).decode()


@every
def test_a_repeated_request_gets_the_stored_reply(name, unbroken, tmp_path, monkeypatch):
    *_, traffic, _ = unbroken(name)
    client = a_client(name, tmp_path)
    first = client.answer(traffic.requests[0][1])
    monkeypatch.setattr(type(client.method), "client_round", None)  # a second draw would fail
    assert client.answer(traffic.requests[0][1]) == first
    assert decode(first).header.kind is Kind.REPLY


@every
def test_a_client_refuses_malformed_stale_and_foreign_requests(name, unbroken):
    *_, traffic, folder = unbroken(name)
    client = a_client(name, folder)  # it has answered all rounds
    last, first = traffic.requests[-3][1], traffic.requests[0][1]
    foreign = decode(last)
    stale = [first] if decode(first).header.round < foreign.header.round else []  # some methods ask but once
    foreign = encode(replace(foreign, header=replace(foreign.header, run=b"another run 1234")))
    for request in (last[:-1], b"", b"VTRL" + bytes(90), *stale, foreign):
        assert decode(client.answer(request)).header.kind is Kind.FAILED


@every
def test_the_server_refuses_malformed_stale_and_foreign_replies(name, unbroken, tmp_path):
    *_, traffic, _ = unbroken(name)
    declared = quick(name).reply_spec()
    client, reply = traffic.replies[-1]
    t = decode(reply).header.round
    fed, *_ = federate(quick(name), tmp_path, rounds=t)  # as the server stood when the last replies came
    assert not isinstance(read_reply(reply, RUN, t, client, declared, fed.server), Failure)
    assert isinstance(read_reply(reply[:-3], RUN, t, client, declared, fed.server), Failure)
    assert isinstance(read_reply(reply, RUN, t + 1, client, declared, fed.server), Failure)
    assert isinstance(read_reply(reply, b"another run 1234", t, client, declared, fed.server), Failure)
    assert isinstance(read_reply(reply, RUN, t, "client-9", declared, fed.server), Failure)
    message = decode(reply)
    fewer = encode(Message(message.header, message.parts[1:]))
    longer = encode(Message(message.header, (*message.parts[1:], _longer(message.parts[0]))))
    more = encode(Message(message.header, (*message.parts, make_part("extra", "float32", np.zeros(1)))))
    for bad in (fewer, longer, more):
        assert isinstance(read_reply(bad, RUN, t, client, declared, fed.server), Failure)


def _longer(part):
    return make_part(part.name, part.codec, np.append(part.array(), 0))


@every
def test_a_reply_with_nan_or_garbage_is_left_out_and_the_round_goes_on(name, tmp_path):
    def spoil(_, client, data):
        if client != "client-1":
            return data
        message = decode(data)
        part = next((p for p in message.parts if p.codec == "float32"), message.parts[0])
        spoiled = np.full(part.shape, np.nan, "<f4").tobytes() if part.codec == "float32" else part.payload[::-1]
        bad = replace(part, payload=spoiled)
        return encode(Message(message.header, tuple(bad if p is part else p for p in message.parts)))

    fed, outcomes, _ = federate(quick(name), tmp_path / "a", spoil=spoil)
    assert all("refused" in o.excluded["client-1"] and len(o.replied) == 2 for o in asking(outcomes))
    absent = federate(quick(name), tmp_path / "b", spoil=lambda _, c, d: Failure("gone") if c == "client-1" else d)
    assert same(fed.tree(), absent[0].tree())


@every
@pytest.mark.parametrize("held", ["one example", "one class"])
def test_a_poor_client_takes_part(name, held, tmp_path):
    labels = digits().train.labels
    few = np.arange(1) if held == "one example" else np.flatnonzero(labels == 3)[:20]
    fed, outcomes, _ = federate(
        quick(name),
        tmp_path,
        holds={"client-0": few, **{k: v for k, v in shares().items() if k != "client-0"}},
    )
    assert all(o.replied == ["client-0", "client-1", "client-2"] for o in asking(outcomes)), outcomes[0].excluded
    assert in_range(quick(name), fed)


@every
def test_a_client_without_data_says_so_and_the_round_goes_on(name, tmp_path):
    holds = {**shares(), "client-0": np.arange(0)}
    fed, outcomes, _ = federate(quick(name), tmp_path, holds=holds)
    assert all("no pictures" in o.excluded["client-0"] and len(o.replied) == 2 for o in asking(outcomes))
    assert in_range(quick(name), fed)


@every
def test_after_lost_replies_and_a_round_that_was_not_closed_everybody_takes_part_again(name, unbroken, tmp_path):
    asked = [o.requested for o in unbroken(name)[1]]
    lost = {(0, "client-2"), (1, "client-0"), (1, "client-1")}
    gone = lambda t, c, d: Failure("gone") if (t, c) in lost else d  # noqa: E731
    fed, outcomes, _ = federate(quick(name), tmp_path, spoil=gone, quorum=2)
    came = [n - sum(at == t for at, _ in lost) if n else 0 for t, n in enumerate(asked)]
    assert [len(o.replied) for o in outcomes] == came, [o.excluded for o in outcomes]
    assert [bool(o.void) for o in outcomes] == [False, asked[1] > 0, False]
    assert in_range(quick(name), fed)


@every
def test_unlabelled_pictures_train_too_or_are_refused(name, tmp_path):
    method = quick(name)
    method = replace(method, task=replace(method.task, classes=0))
    if isinstance(method, FederatedClassifier):
        with pytest.raises(VitrailError, match="needs labels"):
            method.reply_spec()
        return
    train = Images(digits().train.pixels)
    fed, outcomes, _ = federate(method, tmp_path, train=train)
    assert all(len(o.replied) == 3 for o in asking(outcomes)), outcomes[0].excluded
    generator = open_model(method.export_models(fed.server)["generator"], ())
    assert generator.sample(3).shape == (3, 1, 8, 8)


@every
def test_training_changes_the_model(name, unbroken):
    fed, *_ = unbroken(name)
    method = quick(name)
    start = method.server_init(Rng((5,)).child("server", "init"))
    assert not same(product(method, start).tree, product(method, fed.server).tree)


@every
def test_the_stored_model_is_the_one_that_was_made(name, unbroken, tmp_path):
    fed, *_ = unbroken(name)
    model = product(quick(name), fed.server)
    save_model(tmp_path / "m.safetensors", model, CLASSES, {"made": "here"})
    assert in_range(quick(name), fed)
    if model.kind == "classifier":
        shown = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        says = load_classifier(tmp_path / "m.safetensors").logits(shown)
        assert says.equal(open_classifier(model, CLASSES).logits(shown))
        return
    stored, direct = load(tmp_path / "m.safetensors"), open_model(model, CLASSES)
    assert stored.sample(20, seed=3).equal(direct.sample(20, seed=3))
    assert not stored.sample(20, seed=3).equal(stored.sample(20, seed=4))
    assert stored.sample(7, label=3, seed=1).equal(stored.sample(7, label=[3] * 7, seed=1))


def product(method, server):
    """What a method is for: its generator, or its classifier where it makes no pictures."""
    made = method.export_models(server)
    return made.get("generator") or made["classifier"]


def asking(outcomes):
    """The rounds in which clients were asked; a method may go on without them."""
    some = [o for o in outcomes if o.requested]
    assert some
    return some


def in_range(method, fed):
    """Whether pictures are pictures and differ; of a classifier, whether what it says are numbers and differ."""
    model = product(method, fed.server)
    if model.kind == "classifier":
        says = open_classifier(model, CLASSES).logits(torch.rand(30, 1, 8, 8))
        return says.shape == (30, 10) and says.isfinite().all() and not says[0].equal(says[10])
    x = open_model(model, CLASSES).sample(30)
    return x.shape == (30, 1, 8, 8) and x.min() >= 0 and x.max() <= 1 and not x[0].equal(x[10])
