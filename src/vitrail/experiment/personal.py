"""Personal generators: the shared part of a run's checkpoint, with a client's private part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from vitrail.engines.client import private_file
from vitrail.experiment import settings as config
from vitrail.experiment.run_dir import RunDir
from vitrail.methods.base import Model, Task
from vitrail.models.model_file import Generator, load, open_model
from vitrail.nets.content_style import build_content_and_style
from vitrail.nets.flat import from_vector, vector_size
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, VitrailError, nearest


def load_personal(run: str | Path, client: str) -> Generator:
    """Load a client's personal generator; its private part is only in the run's clients/ folder.

    Args:
        run: The run's folder.
        client: The client's name.

    Raises:
        VitrailError: If clients of this method have no personal generators, or the client is unknown.
    """
    generator, own = _of_client(run, client)
    if not own:
        method = config.resolve(str(RunDir(Path(run)).settings), {}).method
        raise VitrailError(
            f"--client {client}: clients of method={method} have no personal generators; leave --client out"
        )
    return generator


def load_joined(model: str | Path, private: str | Path) -> Generator:
    """Load a client's personal generator from the two files that a node has.

    Args:
        model: The model file that all clients received.
        private: The client's private file of the same run.

    Raises:
        VitrailError: If the two do not belong together.
    """
    kept = store.load(Path(private))
    own = kept.get("state") if isinstance(kept, dict) else None
    own = own.get("personal", own) if isinstance(own, dict) else {}  # Ditto's v_k
    if not isinstance(own, dict) or "style" not in own:
        raise VitrailError(f"--client {private}: it has no style; give a private file of a method such as padpaf")

    def joined(shared: Model) -> Model:
        if shared.kind != "padpaf":
            raise Malformed(f"a model of kind {shared.kind!r} takes no style; give that of the same run")
        tree = dict(shared.tree)
        with torch.device("meta"):
            content, style = build_content_and_style(tree)
        for name, net, vector in (("content", content, own.get("generator")), ("style", style, own["style"])):
            if vector is not None and vector.size != vector_size(net):
                raise Malformed(f"{private} has another size of {name}; give the private file of the same run")
            if vector is not None:
                tree[name] = from_vector(net.to_empty(device="cpu"), vector).state_dict()
        return Model(shared.kind, tree)

    generator = load(model, joined)
    if generator.about.get("run", kept["run"].hex()) != kept["run"].hex():
        raise VitrailError(f"--client {private}: it is of another run than {model}; give the two files of the same run")
    return replace(generator, about={**generator.about, "client": Path(private).stem})


def load_of_client(run: str | Path, client: str) -> Generator:
    """Load the generator that a client uses: its personal one, or the shared one if it has none."""
    return _of_client(run, client)[0]


def _of_client(run: str | Path, client: str) -> tuple[Generator, bool]:
    place = RunDir(Path(run))
    if not place.settings.exists():
        raise VitrailError(f"--client {client}: {run} is not a run's folder; give the one that contains clients/")
    private = private_file(place.clients, client)
    if not private.exists():
        known = sorted(p.stem for p in place.clients.glob("*.safetensors"))
        raise VitrailError(f"--client {client}: it has no private file in {place.clients}; {nearest(client, known)}")
    settings = config.resolve(str(place.settings), {})
    shared = load(place.model)
    method = config.build_method(settings, Task(shared.shape, len(shared.classes), settings.rounds, settings.clients))
    server, own = store.load(place.checkpoint)["federation"]["server"], store.load(private)["state"]
    made, plain = method.export_models(server, own).get("generator"), method.export_models(server).get("generator")
    if made is None or not own or (plain is not None and _same(made, plain)):
        return shared, False
    return open_model(made, shared.classes, {**shared.about, "client": client}), True


def _same(a: Model, b: Model) -> bool:
    (arrays_a, shape_a), (arrays_b, shape_b) = store.pack(a.tree), store.pack(b.tree)
    return shape_a == shape_b and all(arrays_a[name].equal(arrays_b[name]) for name in arrays_a)


def fixed(generator: Generator, content: int | None = None, style: int | None = None) -> Generator:
    """Return a personal generator whose images all have the content, or the style, of one seed."""
    from vitrail.nets.content_style import ContentStyleGenerator as Styled
    from vitrail.nets.content_style import FixedLatentGenerator

    if not isinstance(generator.net, Styled) or generator.net.style is None:
        raise VitrailError(
            "--content-seed and --style-seed are for generators with a style, such as those of method=padpaf; "
            "name the client with --client"
        )
    return replace(generator, net=FixedLatentGenerator(generator.net, content, style))
