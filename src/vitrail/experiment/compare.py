"""Compare methods or settings on the same data and seeds; an interrupted comparison can be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from vitrail.data import load as load_data
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.evaluate import by_client, evaluate_clients, evaluate_stored
from vitrail.experiment.plan import feature_network
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import FREE, Settings, sets_rounds, to_dict
from vitrail.experiment.train import resume, start_run
from vitrail.methods import METHODS
from vitrail.methods.base import UNSET_TASK
from vitrail.metrics.evaluation import check_metrics
from vitrail.metrics.extractors import choose_feature_network, load_inception_extractor
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import read_measures, write_evaluation
from vitrail.nets.features import choose_features
from vitrail.utils.errors import VitrailError

FREELY = ("out", "seed")  # what a comparison sets itself


@dataclass
class Entry:
    """One line of the comparison: its settings, and the results of every seed.

    Args:
        name: Its name: the method's, or that of a file's [[runs]].
        settings: The settings of all its runs.
        where: The setting of [each] that it belongs to.
        wanted: Whether it is run; otherwise only earlier results are shown.
        runs: The folders of its finished runs, one per seed.
        found: The measures of each of these runs, as `vitrail.evaluate` returns them.
        failed: What failed, one text per seed.

    Examples:
        >>> (entry,) = entries(["prism"], {"clients": 4})
        >>> entry.name, entry.settings.clients, entry.runs
        ('prism', 4, [])
    """

    name: str
    settings: Settings = field(repr=False)
    where: str = ""
    wanted: bool = True
    runs: list[Path] = field(default_factory=list)
    found: list[list[Measure]] = field(default_factory=list, repr=False)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EvalConfig:
    """How every model is evaluated: the last or best round, the number of images, and the metrics."""

    best: bool = False
    n: int = 2000
    families: Sequence[str] = ("fd-vitrail", "oracle", "classifier")
    fid_n: int = 2000
    clients: bool = False  # also evaluate every client's personal generator


def entries(names: Sequence[str], overrides: Mapping[str, Any], only: str = "*") -> list[Entry]:
    """The lines of a comparison from methods' names and files; a file's [[runs]] each make one.

    A table with methods' names, such as [prism] or ["fedavg, fedprox"], applies to their runs only. Every
    run is repeated in each setting of [each]: with "Split-1" = {partition = "classes:1"}, FedAvg as "Split-1, FedAvg".
    `only` names those that are wanted; overrides must fit these alone.

    >>> [(e.name, e.settings.clients) for e in entries(["prism", "fedgan"], {"clients": 4})]
    [('prism', 4), ('fedgan', 4)]
    >>> [(e.name, e.wanted) for e in entries(["prism", "fedgan", "fedavg"], {"batch_size": 9}, "fedg*")]
    [('prism', False), ('fedgan', True), ('fedavg', False)]
    >>> [e.name for e in entries(["prism", "fedgan", "fedavg"], {"sync": "g"}, "fedg*")]
    ['fedgan']
    """
    if not names:
        raise VitrailError("there is nothing to compare; name methods or files, such as `vitrail compare prism fedgan`")
    if given := [name for name in FREELY if name in overrides]:
        raise VitrailError(f"{given[0]} is set by the comparison; give --seeds and --out instead")
    lines = [line for name in names for line in _lines(name, overrides)]
    folders = [folder_name(line.name) for line in lines]
    for line, folder in zip(lines, folders, strict=True):
        if folders.count(folder) > 1 or not folder.strip("."):
            raise VitrailError(f"a run is called {line.name!r}; give each [[runs]] a name of its own, with letters")
    found: list[Entry] = []
    chosen = _chosen(lines, only)
    for line in lines:
        try:
            found.append(Entry(line.name, config.resolve(line.values, {}), line.where, line in chosen))
        except VitrailError as e:
            if line in chosen:
                where = ", ".join(dict.fromkeys((line.what, line.name)))
                raise VitrailError(f"{where}: {e}") from e
    return found


@dataclass(frozen=True)
class _Line:
    """A run of a file, before its settings are resolved."""

    what: str
    name: str
    where: str
    values: dict[str, Any]


def _lines(what: str, overrides: Mapping[str, Any]) -> Iterator[_Line]:
    """Yield all runs of a file, in each of its settings."""
    common = config.read(what)
    runs = common.pop("runs", [{}])
    tables = _tables(common)
    if not isinstance(runs, list) or not runs or not all(isinstance(r, dict) for r in runs):
        raise VitrailError(f"{what}: runs must be tables, each [[runs]] with a name and the settings that differ")
    each = common.pop("each", {"": {}})
    if not isinstance(each, dict) or not each or not all(isinstance(e, dict) for e in each.values()):
        raise VitrailError(f'{what}: [each] must have names with settings, such as "IID" = {{partition = "iid"}}')
    for (where, setting), own in product(each.items(), runs):
        name = ", ".join(filter(None, (where, str(own.get("name", Path(what).stem)))))
        method = str({**common, **setting, **own, **overrides}.get("method"))
        values = {**common, **tables.get(method, {}), **setting, **own, **overrides}
        yield _Line(what, name, where, {k: v for k, v in values.items() if k not in ("name", *FREELY)})


def _tables(common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Take the tables of methods out of a file's settings: those of each method, by its name.

    >>> _tables({"data": "digits", "fedavg, fedprox": {"rounds": 3}, "fedprox": {"prox_mu": 1}})
    {'fedavg': {'rounds': 3}, 'fedprox': {'rounds': 3, 'prox_mu': 1}}
    """
    found: dict[str, dict[str, Any]] = {}
    for key in [k for k, v in common.items() if isinstance(v, dict)]:
        names = [name.strip() for name in key.split(",")]
        if all(name in METHODS for name in names):
            settings = common.pop(key)
            for name in names:
                found[name] = {**found.get(name, {}), **settings}
    return found


def _chosen(lines: Sequence[_Line], patterns: str) -> list[_Line]:
    """The lines whose name matches one of the patterns, separated by semicolons; * matches anything.

    >>> entries(["prism", "fedgan"], {}, "padpaf")
    Traceback (most recent call last):
    vitrail.utils.errors.VitrailError: --only padpaf: no run is called so; there are 'prism', 'fedgan'
    """
    wanted = [pattern.strip() for pattern in patterns.split(";") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatchcase(line.name, pattern) for line in lines):
            names = ", ".join(repr(line.name) for line in lines)
            raise VitrailError(f"--only {pattern}: no run is called so; there are {names}")
    return [line for line in lines if any(fnmatchcase(line.name, pattern) for pattern in wanted)]


def folder_name(name: str) -> str:
    """Return the name of a run's folder.

    >>> folder_name("sync d&g, k = 2")
    'sync-d-g-k-2'
    """
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in name).split())


def run_dir(entry: Entry, seed: int, out: Path) -> RunDir:
    """Return the folder of a run of the comparison."""
    return RunDir(out / folder_name(entry.name) / f"seed-{seed}")


def check(found: Sequence[Entry], seeds: Sequence[int], out: Path, how: EvalConfig) -> dict[str, str]:
    """Refuse what would fail after hours; return the feature network that evaluates all runs, by data."""
    families = check_metrics(how.families)
    if "fid" in families:
        load_inception_extractor()  # raises if its weights are missing
    if how.best and how.clients:
        raise VitrailError("clients store the model of their last round only; remove --best or --clients")
    for entry in (e for e in found if e.wanted):
        if how.best and entry.settings.eval_every == 0:
            raise VitrailError(f"{entry.name}: eval_every=0 stores no best round; remove --best, or set eval_every")
        method = config.build_method(entry.settings, UNSET_TASK)
        if how.best and method.mechanism and not method.mechanism.assumed:  # assumed: no proven ε
            raise VitrailError(
                f"{entry.name}: a private run stores no best round, because choosing it by held-out images is not "
                "covered by its ε; remove --best"
            )
        for seed in seeds:
            folder = run_dir(entry, seed, out)
            if folder.settings.exists() and (other := changed_settings(entry.settings, seed, folder)):
                raise VitrailError(
                    f"{folder.path} was run with another {', '.join(other)}; give another --out, or remove it"
                )
    against: dict[str, set[str]] = {}
    for s in (e.settings for e in found):
        psi = feature_network(s)
        against.setdefault(s.data, set()).update([choose_features(s.data) if psi == "auto" else psi] if psi else [])
    if "fd-vitrail" not in families:
        return {}
    return {data: choose_feature_network(data, psis) for data, psis in against.items()}


def changed_settings(wanted: Settings, seed: int, folder: RunDir) -> list[str]:
    """Settings in which a stored run differs; those that do not change the result are ignored."""
    has = to_dict(folder.stored_settings())
    want = {**to_dict(wanted), "seed": seed}
    ignored = {*FREE, "rounds"} - {"minutes"} if sets_rounds(wanted) else {*FREE}
    return [k for k, v in want.items() if k not in ignored and v != "auto" and has.get(k) != v]


def compare(
    found: Sequence[Entry],
    seeds: Sequence[int],
    out: Path,
    how: EvalConfig,
    watch: Callable[[Entry, int], Callback],
    report_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Run and evaluate everything that is missing, seed by seed: after an early stop the first seeds are complete."""
    networks = check(found, seeds, out, how)
    for seed in seeds:
        for entry in found:
            folder = run_dir(entry, seed, out)
            settings = entry.settings.model_copy(update={"seed": seed, "out": str(folder.path)})
            there = folder.settings.exists()
            rounds = folder.stored_settings().rounds if there else settings.rounds
            done = there and folder.model.exists() and len(folder.rows()) == rounds
            if not entry.wanted and not (done and not changed_settings(entry.settings, seed, folder)):
                continue
            try:
                if not there:
                    start_run(settings, None, watch(entry, seed))
                elif not done:
                    resume(folder.path, callbacks=[watch(entry, seed)])
                entry.found.append(_measure(folder, how, networks.get(settings.data)))
                entry.runs.append(folder.path)
            except (VitrailError, OSError, RuntimeError) as e:  # the other runs continue
                entry.failed.append(f"{entry.name}, seed {seed}: {e}")
                report_progress(f"failed: {entry.failed[-1]}")


def _measure(folder: RunDir, how: EvalConfig, network: str | None) -> list[Measure]:
    """The results of a run's model: read if they were computed with the same options, otherwise computed."""
    model = folder.best if how.best else folder.model
    if not model.exists():
        raise VitrailError(
            f"{model} does not exist: a private run stores no best round, nor does one with too few held-out images; "
            "remove --best"
        )
    stored = folder.path.with_suffix(".json")
    options: dict[str, Any] = {"families": list(how.families), "n": how.n, "fid_n": how.fid_n}
    options["feature_network"] = network
    known = read_measures(stored, model, options)
    if known is None:
        s = folder.stored_settings()
        data = load_data(s.data, size=s.size, test_fraction=s.test_fraction)
        _, columns = evaluate_stored(folder.path if model == folder.model else model, data, **options)
        write_evaluation(stored, data, columns)
        known = list(columns[0].measures)
    if how.clients:
        data, columns = evaluate_clients(folder.path, stored=folder.by_client, **options)
        write_evaluation(folder.by_client, data, columns)
        known = known + by_client(columns)
    return known
