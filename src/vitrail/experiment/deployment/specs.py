"""From settings and plans to the specification that nodes are sent, and back to settings and a method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.engines.flower.descriptions import RunSpec
from vitrail.experiment import settings as config
from vitrail.methods.base import UNSET_TASK, Method, Task
from vitrail.utils.errors import Malformed

if TYPE_CHECKING:
    from vitrail.experiment.plan import Plan
    from vitrail.experiment.settings import Settings

_OWN = (*config.FREE, "data", "partition", "device", "budget_name")  # each party has its own, and does not send it


def offer_spec(settings: Settings) -> RunSpec:
    """Return the specification of a run whose nodes are not known yet."""
    return RunSpec({k: v for k, v in config.to_dict(settings).items() if k not in _OWN})


def spec_of(plan: Plan) -> RunSpec:
    """Return the specification of a planned run."""
    shared = offer_spec(plan.settings).settings
    return RunSpec(shared, plan.id.hex(), plan.data.shape, plan.data.classes, plan.method.task.clients)


def common_settings(spec: RunSpec) -> Settings:
    """Return the settings that every method has, without importing the method.

    Raises:
        Malformed: The settings cannot be read.
    """
    known = {k: v for k, v in spec.settings.items() if k in config.Settings.model_fields}
    try:
        return config.Settings.model_validate(known)
    except ValueError as e:
        raise Malformed(f"the settings of the run cannot be read: {type(e).__name__}") from None


def draft_spec(spec: RunSpec) -> RunSpec:
    """Return a specification with provisional values where the final ones are not known yet.

    The decision of a policy does not depend on the shape: noise multipliers and ε have no dimension.
    """
    s, settings = common_settings(spec), spec.settings
    settings = {**settings, **config.build_method(resolved_settings(spec), UNSET_TASK).auto_settings("")}
    classes = spec.classes if spec.shape or s.labels != "auto" else ("0", "1")
    return RunSpec(settings, spec.id, (1, s.size or 32, s.size or 32), classes, spec.clients or s.clients)


def resolved_settings(spec: RunSpec, device: str = "cpu") -> Settings:
    """Return all settings of the run, validated like those of any run."""
    return config.resolve(spec.settings, {"device": device})


def method_of(spec: RunSpec, device: str = "cpu") -> Method:
    """Build the method of the run.

    Args:
        spec: The specification of the run.
        device: Torch device of this party.

    Raises:
        Malformed: The shape of the images is not three numbers.
        VitrailError: A setting is invalid.
    """
    s = resolved_settings(spec, device)
    if len(spec.shape) != 3:
        raise Malformed(f"images of shape {spec.shape}; channels, height and width are expected")
    c, h, w = spec.shape
    task = Task((c, h, w), len(spec.classes), s.rounds, spec.clients, device, s.secagg_threshold, s.noise_source)
    return config.build_method(s, task)
