"""What a run is: one validated description, from a method's name or a TOML file, plus `key=value` overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from vitrail.experiment.validation import BadSettings, Problem, cross_checks, explain, once
from vitrail.methods import METHODS
from vitrail.methods.base import Method, Task
from vitrail.utils.errors import VitrailError
from vitrail.utils.renamed import current_settings, original_settings
from vitrail.wire.message import digest


class Settings(BaseModel):
    """The settings every run has; each method adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    method: Annotated[str, Field(description="what is trained: see `vitrail list`")]
    data: Annotated[str, Field(description="where pictures come from: see `vitrail list`")] = "mnist5k"
    size: Annotated[int | None, Field(ge=8, le=128, description="pictures are made this many pixels square")] = None
    test_fraction: Annotated[
        float, Field(gt=0, lt=1, description="share held out, by content, where the data has no test set of its own")
    ] = 0.2
    labels: Annotated[Literal["auto", "ignore"], Field(description="use labels where there are any, or not")] = "auto"
    clients: Annotated[int, Field(ge=1, le=1_000_000, description="how many clients share the data")] = 10
    partition: Annotated[str, Field(description="who holds which pictures: see `vitrail list`")] = "iid"
    server_fraction: Annotated[float, Field(ge=0, lt=1, description="share of the pictures the server holds")] = 0.0
    rounds: Annotated[int, Field(ge=1, le=1_000_000, description="rounds of communication")] = 20
    clients_per_round: Annotated[
        int | None, Field(ge=1, description="clients drawn for each round; all by default")
    ] = None
    client_dropout: Annotated[
        float, Field(ge=0, lt=1, description="simulated chance that a client does not answer")
    ] = 0.0
    quorum: Annotated[int, Field(ge=1, description="answers a round needs; with fewer the model stays as it was")] = 1
    aggregation: Annotated[
        Literal["mean", "median", "trimmed_mean"],
        Field(
            description="how the server combines clients' models; median and trimmed_mean withstand a few false ones"
        ),
    ] = "mean"
    trim: Annotated[
        float,
        Field(gt=0, lt=0.5, description="trimmed_mean: share of the clients removed at either end, per coordinate"),
    ] = 0.1
    secagg_threshold: Annotated[
        int, Field(ge=0, description="secure aggregation: clients that must remain to open a sum; 0: none is used")
    ] = 0
    noise_source: Annotated[
        Literal["seed", "os"],
        Field(
            description="source of noise and secrets: the seed (reproducible, for simulations) or the operating system "
            "(the default of deployments; nothing else is private there)"
        ),
    ] = "seed"
    budget: Annotated[
        float | None, Field(gt=0, description="the ε that each client may spend in all runs together; it refuses more")
    ] = None
    budget_name: Annotated[
        str, Field(description="the name under which clients keep their budgets; by default the data's")
    ] = ""
    seed: Annotated[int, Field(ge=0, lt=2**63, description="everything random follows from it")] = 0
    init_from: Annotated[str | None, Field(description="an earlier run's folder to start from")] = None
    out: Annotated[str, Field(min_length=1, description="the run's folder; by default a new one below runs/")] = ""
    workers: Annotated[
        int | Literal["auto"],
        Field(description="processes that train clients; auto: one per core. Never changes a bit"),
    ] = "auto"
    engine: Annotated[
        Literal["embedded", "flower"],
        Field(description="what carries messages: processes of this one, or Flower. Never changes a bit"),
    ] = "embedded"
    timeout: Annotated[
        float, Field(gt=0, le=30 * 86400, description="engine=flower: seconds that a client has to answer")
    ] = 3600.0
    device: Annotated[str, Field(description="torch device of the clients; auto: a GPU where there is one")] = "auto"
    grids: Annotated[int, Field(ge=0, description="how many sample grids to write along the way")] = 8
    eval_every: Annotated[
        int | None,
        Field(
            ge=0,
            description="rounds between measurements of fd; 0: none, and no best round. By default about ten in all",
        ),
    ] = None
    tensorboard: Annotated[
        bool, Field(description="write TensorBoard events too (pip install 'vitrail[tensorboard]')")
    ] = False


FREE = (
    "out",
    "workers",
    "engine",
    "timeout",
    "grids",
    "eval_every",
    "tensorboard",
    "init_from",
)  # settings that cannot change a bit, or count by their content
LATER = {
    "aggregation": "mean",
    "trim": 0.1,
}  # newer than version 0.1.0: at these values a run keeps the id it had there


@cache
def settings_model(method: str) -> type[Settings]:
    """The settings of a method: those of every run, and its own."""
    cls = METHODS[method]
    hints = get_type_hints(cls, include_extras=True)
    own: dict[str, Any] = {
        f.name: (hints[f.name], f.default if f.default is not MISSING else ...) for f in fields(cls) if f.name != "task"
    }
    for name, default in cls.defaults.items():
        base = Settings.model_fields[name]
        own[name] = (Annotated[base.annotation, *base.metadata, Field(description=base.description)], default)
    model: type[Settings] = create_model(f"{cls.__name__}Settings", __base__=Settings, **own)
    return model


def resolve(what: str | Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Settings from a method's name or a TOML file, and overrides; every problem is reported at once.

    >>> resolve("prism", {"clients": 4}).clients
    4
    >>> resolve("prism", {"clints": 4, "rounds": 0})
    Traceback (most recent call last):
    vitrail.experiment.validation.BadSettings: 2 problems with the settings:
      rounds = 0: must be at least 1 (default 12)
      clints = 4: not a setting; did you mean clients?
    """
    values = {**(one(what) if isinstance(what, str) else what), **overrides}
    method = values.get("method", "")
    problems: list[Problem] = []
    try:
        model = settings_model(str(method))
    except VitrailError as e:
        problems.append(Problem("method", method, str(e).removeprefix(f"{method} is ")))
        model = Settings
    known = model.model_fields
    good: dict[str, Any] = {}
    try:
        found = model.model_validate(values)
        good = {name: getattr(found, name) for name in known}
    except ValidationError as e:
        found = None
        wrong = {str(err["loc"][0]) for err in e.errors()}
        for err in e.errors():
            problem = explain(err, model)
            if problem and not (model is Settings and err["type"] == "extra_forbidden"):
                problems.append(problem)
        good = {name: values.get(name, f.default) for name, f in known.items() if name not in wrong}
    problems += cross_checks({**good, **{k: values[k] for k in known if isinstance(values.get(k), bool)}})
    if problems or found is None:
        raise BadSettings(sorted(once(problems), key=lambda p: "not a setting" in p.remedy))
    return found


def one(what: str) -> dict[str, Any]:
    """What a method's name or a file of one run says."""
    values = read(what)
    if "runs" in values or "each" in values:
        raise VitrailError(f"{what} describes several runs; `vitrail compare {what}` plays them all")
    return values


def read(what: str) -> dict[str, Any]:
    """The settings of a method's name, or of a TOML file, as they stand there."""
    path = Path(what)
    if not what.endswith(".toml"):
        if path.is_dir() and (path / "settings.toml").exists():
            raise VitrailError(
                f"{what} is a run's folder; `vitrail resume {what}` goes on with it, {what}/settings.toml repeats it"
            )
        return {"method": what}
    try:
        text = path.read_text("utf-8")
        return current_settings(text, tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as e:
        raise VitrailError(
            f"cannot read {what}: {e}; give a TOML file or a method's name ({', '.join(METHODS)})"
        ) from e
    except tomllib.TOMLDecodeError as e:
        raise VitrailError(f"{what} is not valid TOML: {e}") from e


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; the value is read as TOML where it is a number, a truth value or a list.

    >>> parse_override("clients=4"), parse_override("partition=dirichlet:0.3")
    (('clients', 4), ('partition', 'dirichlet:0.3'))
    """
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise VitrailError(f"{text!r} is not an override; write key=value, such as clients=10")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), raw
    return key.strip(), value if isinstance(value, bool | int | float | str) else raw


def to_dict(settings: Settings) -> dict[str, Any]:
    """Settings as they stand in a file."""
    return settings.model_dump(exclude_none=True)


def to_toml(settings: Settings, version: str) -> str:
    """The resolved settings as a file that repeats the run."""
    return f"# A run of vitrail {version}; `vitrail run THIS_FILE out=ELSEWHERE` repeats it.\n" + tomli_w.dumps(
        to_dict(settings)
    )


def identity(settings: Settings, *content: str) -> bytes:
    """A name for all that decides a run's bits: settings, and the content of its data and of what it starts from."""
    decides = {k: v for k, v in to_dict(settings).items() if k not in FREE and LATER.get(k) != v}
    return digest("run", tomli_w.dumps(dict(sorted(original_settings(decides).items()))), *content)


def build_method(settings: Settings, task: Task) -> Method:
    """The method with its own settings, and the task all parties share."""
    cls = METHODS[settings.method]
    own = {f.name: getattr(settings, f.name) for f in fields(cls) if f.name != "task"}
    method: Method = cls(task=task, **own)
    return method
