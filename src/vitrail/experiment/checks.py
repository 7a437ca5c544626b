"""Checks of a planned run: what would fail during or after training is refused before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.engines.secagg.server import check_secagg
from vitrail.engines.sums import check_robust
from vitrail.experiment.callbacks import CALLBACKS, callback_names, check_tensorboard
from vitrail.experiment.plugins import check_processes
from vitrail.experiment.settings import sets_rounds
from vitrail.methods.registry import METHODS
from vitrail.models.model_file import open_classifier, open_model
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.experiment.plan import Plan


def check_plan(plan: Plan) -> None:
    """Refuse a run that cannot finish.

    Raises:
        VitrailError: With what is wrong, and the remedy.
    """
    s = plan.settings
    if not plan.clients:
        raise VitrailError(f"partition={s.partition}: no client has an image; use fewer clients or another partition")
    requested = min(s.clients_per_round or len(plan.clients), len(plan.clients))
    if s.quorum > requested:
        raise VitrailError(f"quorum={s.quorum}: only {requested} clients with images are selected per round; lower it")
    names = callback_names(s.callbacks)
    for name in names:
        CALLBACKS[name]
    if s.tensorboard or "tensorboard" in names:
        check_tensorboard()
    if plan.deployed and sets_rounds(s):
        raise VitrailError(f"minutes={s.minutes:g}: the time of other machines is not known here; set rounds=")
    if s.engine == "flower":
        from vitrail.engines.flower import check_installed

        check_installed()
    check_processes(s)
    plan.method.reply_spec()  # fails if a network cannot be built for these images, or ε cannot be reached
    if s.aggregation != "mean":
        check_robust(plan.method, requested)
    if s.secagg_threshold:
        check_secagg(plan.method, requested)
    if plan.start is not None:
        plan.method.server_init(Rng((s.seed,)), None, plan.start)  # fails if the start does not fit
    if not METHODS.is_builtin(s.method):
        _check_export(plan)


def _check_export(plan: Plan) -> None:
    """Refuse a method from outside the package whose models could not be stored and read again."""
    models = plan.method.export_models(plan.init_server())
    if not models.keys() & {"generator", "classifier"}:
        raise VitrailError(
            f"method={plan.settings.method}: export_models returns {sorted(models) or 'nothing'}; it must return a "
            '"generator", a "classifier", or both'
        )
    for name, model in models.items():
        try:
            (open_classifier if model.kind == "classifier" else open_model)(model, plan.data.classes)
        except Malformed as e:
            raise VitrailError(
                f"method={plan.settings.method}: the {name} that export_models returns cannot be read again: {e}"
            ) from e
