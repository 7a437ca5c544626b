"""Settings of a run: one validated description, from a method's name or a TOML file, and `key=value` overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from vitrail.experiment.validation import BadSettings, Problem, cross_checks, explain, once
from vitrail.methods.base import BaseMethod, Method, Task
from vitrail.methods.registry import METHODS
from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import PLUGINS
from vitrail.utils.renamed import current_settings, original_settings
from vitrail.wire.message import digest


def _setting(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, **bounds)


class Settings(BaseModel):
    """Settings of every run; each method adds its own (see `settings_model`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    method: str = Field(description="what is trained: see `vitrail list`")
    data: str = _setting("mnist5k", "source of the images: see `vitrail list`")
    size: int | None = _setting(None, "width and height of the images in pixels", ge=8, le=128)
    test_fraction: float = _setting(0.2, "share of test images, by content, if the data has no test set", gt=0, lt=1)
    labels: Literal["auto", "ignore"] = _setting("auto", "use labels where available, or not")
    clients: int = _setting(10, "number of clients", ge=1, le=1_000_000)
    partition: str = _setting("iid", "which client has which images: see `vitrail list`")
    server_fraction: float = _setting(0.0, "share of the images that the server has", ge=0, lt=1)
    rounds: int = _setting(20, "rounds of training; in some the server may train alone", ge=1, le=1_000_000)
    minutes: float | None = _setting(
        None, "training time to aim for, in minutes: sets rounds, unless given, by timing a few rounds first", gt=0
    )
    clients_per_round: int | None = _setting(None, "clients selected per round; default: all", ge=1)
    client_dropout: float = _setting(0.0, "simulated probability that a client does not reply", ge=0, lt=1)
    quorum: int = _setting(1, "replies that a round needs; with fewer it is discarded", ge=1)
    aggregation: Literal["mean", "median", "trimmed_mean"] = _setting(
        "mean", "how the server combines clients' models; median and trimmed_mean tolerate a few false ones"
    )
    trim: float = _setting(0.1, "trimmed_mean: share of the clients removed at each end, per coordinate", gt=0, lt=0.5)
    secagg_threshold: int = _setting(0, "secure aggregation: clients that must remain to open a sum; 0: off", ge=0)
    noise_source: Literal["seed", "os"] = _setting(
        "seed",
        "source of noise and secrets: the seed (reproducible, for simulations) or the operating system (the default "
        "of deployments; required there for privacy)",
    )
    budget: float | None = _setting(None, "ε that each client may spend in all runs together; it refuses more", gt=0)
    budget_name: str = _setting("", "name under which clients store their budgets; default: the data's name")
    seed: int = _setting(0, "seed of all randomness", ge=0, lt=2**63)
    init_from: str | None = _setting(None, "folder of an earlier run to start from")
    out: str = _setting("", "the run's folder; default: a new one below runs/", min_length=1)
    workers: int | Literal["auto"] = _setting(
        "auto", "processes that train clients; auto: one per core. Does not change the result"
    )
    engine: Literal["embedded", "flower"] = _setting(
        "embedded", "what carries messages: local processes, or Flower. Does not change the result"
    )
    timeout: float = _setting(3600.0, "engine=flower: seconds that a client has to reply", gt=0, le=30 * 86400)
    device: str = _setting("auto", "torch device of the clients; auto: a GPU if there is one")
    grids: int = _setting(8, "number of sample grids to write during the run", ge=0)
    eval_every: int | None = _setting(
        None, "rounds between evaluations; 0: none, and no best round. Default: about ten in all", ge=0
    )
    tensorboard: bool = _setting(False, "write TensorBoard events (pip install 'vitrail[tensorboard]')")
    callbacks: str = _setting("", "names of registered callbacks, separated by commas")


# Settings that do not change the result, or count by their content: they are not part of a run's identity.
FREE = (
    "out", "minutes", "workers", "engine", "timeout", "grids", "eval_every", "tensorboard", "callbacks", "init_from",
)  # fmt: skip
# Settings of every run added after version 0.1.0: at these values a run has the identity it had there. A method lists
# its own in `added_later`.
ADDED_LATER: dict[str, Any] = {"aggregation": "mean", "trim": 0.1}


def settings_model(method: str) -> type[Settings]:
    """Return the pydantic model of a method's settings: those of every run, and the fields of the method's class.

    Raises:
        VitrailError: If there is no such method, or its class cannot be used as one.
    """
    return _model_of(METHODS[method])


@cache
def _model_of(cls: type[BaseMethod]) -> type[Settings]:
    own = {f.name: f for f in _method_fields(cls)}
    if taken := [name for name in own if name in Settings.model_fields]:
        raise VitrailError(f"{cls.__name__}.{taken[0]}: every run has a setting of this name; rename the field")
    try:
        hints = get_type_hints(cls, include_extras=True)
        found: dict[str, Any] = {name: (_annotation(hints[name], f), _default(f)) for name, f in own.items()}
        for name, default in cls.defaults.items():
            base = Settings.model_fields[name]
            found[name] = (Annotated[base.annotation, *base.metadata, Field(description=base.description)], default)
        model: type[Settings] = create_model(f"{cls.__name__}Settings", __base__=Settings, **found)
    except (NameError, KeyError, PydanticUserError) as e:
        raise VitrailError(
            f"{cls.__name__}: its fields cannot be settings ({str(e).splitlines()[0]}); annotate them with int, float, "
            "str or bool, and list only common settings in `defaults`"
        ) from e
    return model


def _annotation(hint: Any, field_: DataclassField[Any]) -> Any:
    """The type of a setting, with the description and checks of `vitrail.setting`."""
    about = dict(field_.metadata)
    checks = (AfterValidator(check),) if (check := about.pop("check", None)) else ()
    return Annotated[hint, *checks, Field(**about)] if about else hint


def _default(field_: DataclassField[Any]) -> Any:
    if field_.default_factory is not MISSING:
        return Field(default_factory=field_.default_factory)
    return field_.default if field_.default is not MISSING else ...


def _method_fields(cls: type[BaseMethod]) -> list[DataclassField[Any]]:
    """The fields of a method's class that are settings; a class that is not a complete method is refused."""
    name = cls.__name__
    if not issubclass(cls, BaseMethod):
        raise VitrailError(f"{name} does not derive from vitrail.BaseMethod, as a method must")
    if missing := sorted(cls.__abstractmethods__):
        raise VitrailError(f"{name} does not define {', '.join(missing)}; see vitrail.Method for what each must do")
    if "__annotations__" in vars(cls) and "__dataclass_fields__" not in vars(cls):
        raise VitrailError(f"{name} has fields but is not a dataclass; decorate it with @dataclass(frozen=True)")
    return [f for f in fields(cls) if f.name != "task" and f.init]


def resolve(what: str | Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Return validated settings.

    Args:
        what: A method's name, the path of a TOML file, or settings by name.
        overrides: Settings that take precedence.

    Raises:
        BadSettings: With every problem and its remedy.

    Examples:
        >>> resolve("prism", {"clients": 4}).clients
        4
        >>> resolve("prism", {"clints": 4, "rounds": 0})
        Traceback (most recent call last):
        vitrail.experiment.validation.BadSettings: 2 problems with the settings:
          rounds = 0: must be at least 1 (default 12)
          clints = 4: not a setting; did you mean clients?
    """
    values = {**(read_one(what) if isinstance(what, str) else what), **overrides}
    method = values.get("method", "")
    problems: list[Problem] = []
    try:
        model = settings_model(str(method))
    except VitrailError as e:
        problems.append(Problem("method", method, _method_problem(str(method), str(e))))
        model = Settings
    known = model.model_fields
    try:
        found = model.model_validate(values)
        good: dict[str, Any] = {name: getattr(found, name) for name in known}
    except ValidationError as e:
        found = None
        wrong = {str(err["loc"][0]) for err in e.errors()}
        reported = [err for err in e.errors() if model is not Settings or err["type"] != "extra_forbidden"]
        problems += filter(None, (explain(err, model, str(method)) for err in reported))
        good = {name: values.get(name, f.default) for name, f in known.items() if name not in wrong}
    problems += cross_checks({**good, **{k: values[k] for k in known if isinstance(values.get(k), bool)}})
    if problems or found is None:
        raise BadSettings(sorted(once(problems), key=lambda p: "not a setting" in p.remedy))
    return found


def _method_problem(method: str, problem: str) -> str:
    """Why a method's name cannot be used, and the remedy."""
    if method in METHODS:
        return problem
    remedy = f"if it is a method of your own, list the module that registers it in the environment variable {PLUGINS}"
    return f"{problem.removeprefix(f'{method} is ')} ({remedy})"


def read_one(what: str) -> dict[str, Any]:
    """Return the unchecked settings of one run, from a method's name or a file."""
    values = read(what)
    if "runs" in values or "each" in values:
        raise VitrailError(f"{what} describes several runs; run them all with `vitrail compare {what}`")
    return values


def read(what: str) -> dict[str, Any]:
    """Return the unchecked settings of a method's name or of a TOML file.

    Raises:
        VitrailError: If the file cannot be read.
    """
    path = Path(what)
    if not what.endswith(".toml"):
        if path.is_dir() and (path / "settings.toml").exists():
            raise VitrailError(
                f"{what} is a run's folder; continue it with `vitrail resume {what}`, or repeat it with "
                f"`vitrail run {what}/settings.toml out=...`"
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
    """Parse `key=value` of the command line; a number, boolean or quoted text is read as TOML.

    Examples:
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
    """Return settings as plain values, as a file stores them."""
    return settings.model_dump(exclude_none=True)


def to_toml(settings: Settings, version: str) -> str:
    """Return the text of a settings file that repeats the run."""
    head = f"# A run of vitrail {version}; `vitrail run THIS_FILE out=ELSEWHERE` repeats it.\n"
    return head + tomli_w.dumps(to_dict(settings))


def identity(settings: Settings, *content: str) -> bytes:
    """Return a digest of everything that decides a run's result: settings, data and start."""
    later = ADDED_LATER | dict(vars(METHODS[settings.method]).get("added_later", {}))
    decides = {k: v for k, v in to_dict(settings).items() if k not in FREE and later.get(k) != v}
    if METHODS.is_builtin(settings.method):
        decides = original_settings(decides)
    return digest("run", tomli_w.dumps(dict(sorted(decides.items()))), *content)


def sets_rounds(settings: Settings) -> bool:
    """Return whether `minutes` decides the number of rounds, which is not known yet."""
    return settings.minutes is not None and "rounds" not in settings.model_fields_set


def build_method(settings: Settings, task: Task) -> Method:
    """Return the method that the settings describe, with its task."""
    cls = METHODS[settings.method]
    own = {f.name: getattr(settings, f.name) for f in fields(cls) if f.name != "task" and f.init}
    method: Method = cls(task=task, **own)
    return method
