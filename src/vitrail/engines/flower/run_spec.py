"""What a node is told of a run: its settings without what concerns the server alone, and the task all share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vitrail.experiment import settings as config
from vitrail.methods.base import Method, Task
from vitrail.utils.errors import Malformed

if TYPE_CHECKING:
    from vitrail.experiment.plan import Plan
    from vitrail.experiment.settings import Settings

_OWN = (*config.FREE, "data", "partition", "device", "budget_name")  # each side has its own, and keeps it


@dataclass(frozen=True)
class RunSpec:
    """A run as a node sees it; before all nodes are known it has no id, shape, classes and number of clients yet."""

    settings: dict[str, Any]
    id: str = ""  # of the run, in hexadecimal
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    clients: int = 0

    @staticmethod
    def offer(settings: Settings) -> RunSpec:
        """Before nodes have said what they hold."""
        return RunSpec({k: v for k, v in config.to_dict(settings).items() if k not in _OWN})

    @staticmethod
    def of(plan: Plan) -> RunSpec:
        """Of a run that is ready to go."""
        told = RunSpec.offer(plan.settings).settings
        return RunSpec(told, plan.id.hex(), plan.data.shape, plan.data.classes, plan.method.task.clients)

    def text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def read(text: str) -> RunSpec:
        """As it came."""
        try:
            found = json.loads(text)
            shape, classes = tuple(map(int, found["shape"])), tuple(map(str, found["classes"]))
            run = bytes.fromhex(found["id"]).hex()
            return RunSpec(dict(found["settings"]), run, shape, classes, int(found["clients"]))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise Malformed(f"what the run is cannot be read: {type(e).__name__}") from None

    def common(self) -> Settings:
        """The settings that every run has; the method's own are not looked at, nor is its code loaded."""
        known = {k: v for k, v in self.settings.items() if k in config.Settings.model_fields}
        try:
            return config.Settings.model_validate(known)
        except ValueError as e:
            raise Malformed(f"the run's settings cannot be read: {type(e).__name__}") from None

    def draft(self) -> RunSpec:
        """These terms with a provisional shape, and with provisional classes, clients and features where not known yet.

        A policy's verdict does not depend on the shape: noise multipliers and ε have no dimension.
        """
        s, settings = self.common(), self.settings
        if settings.get("features") == "auto":
            from vitrail.nets.features import choose_features

            settings = {**settings, "features": choose_features("")}
        classes = self.classes if self.shape or s.labels != "auto" else ("0", "1")
        return RunSpec(settings, self.id, (1, s.size or 32, s.size or 32), classes, self.clients or s.clients)

    def resolved(self, device: str = "cpu") -> Settings:
        """The settings, checked as those of any run are."""
        return config.resolve(self.settings, {"device": device})

    def method(self, device: str = "cpu") -> Method:
        """The method of this run."""
        s = self.resolved(device)
        if len(self.shape) != 3:
            raise Malformed(f"pictures of shape {self.shape}; three numbers are a picture's")
        c, h, w = self.shape
        task = Task((c, h, w), len(self.classes), s.rounds, self.clients, device, s.secagg_threshold, s.noise_source)
        return config.build_method(s, task)
