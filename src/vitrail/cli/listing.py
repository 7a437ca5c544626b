"""The command `list`: what can be chosen, and the settings of a method by topic."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from typer import Argument

TOPICS = {
    "data": "data size test_fraction labels clients partition server_fraction",
    "rounds": "rounds clients_per_round active_clients quorum client_dropout aggregation trim weighting init_from seed",
    "networks": (
        "generator width latent_dim style_depth discriminator d_architecture d_width d_norm client_discriminators "
        "features layers pool_size label_maps final_mask"
    ),
    "privacy": (
        "privacy epsilon delta noise_multiplier max_grad_norm max_update_norm theta_clip sample_rate dp_steps "
        "secagg_threshold max_colluding max_per_class noise_source budget budget_name label_sets key_source"
    ),
    "communication": (
        "coding klms_bits klms_block alpha score_layers score_form score_codec sampling wire_dtype fake_dtype d_coding "
        "sync upload shared steps_per_message"
    ),
    "run": "out engine workers timeout device grids eval_every tensorboard",
}  # all other settings are shown under "training"
_SOURCE = re.compile(r"\s*\((paper: [^)]*|published code: [^)]*|ours)\)")


def list_(
    method: Annotated[
        str | None, Argument(metavar="[METHOD]", help="A method, to see its settings and their defaults.")
    ] = None,
) -> None:
    """List methods, data sources, partitions and metrics; or the settings of a method.

    `vitrail list`

    `vitrail list prism`
    """
    if method is None:
        _list_all()
    else:
        _list_settings(method)


def _list_all() -> None:
    from vitrail.data import PARTITIONS, SOURCES
    from vitrail.methods.registry import METHODS
    from vitrail.metrics.registry import METRICS

    _print("Methods (vitrail list METHOD shows settings)", ((name, METHODS.summary(name)) for name in METHODS))
    _print("data=", ((name, SOURCES.summary(name)) for name in SOURCES))
    _print("partition=", ((name, PARTITIONS.summary(name)) for name in PARTITIONS))
    _print("vitrail evaluate --metrics", ((name, METRICS.summary(name)) for name in METRICS))


def _list_settings(method: str) -> None:
    from vitrail.experiment.plugins import setting_registries
    from vitrail.experiment.settings import settings_model

    registries = dict(setting_registries(method))
    fields = {name: f for name, f in settings_model(method).model_fields.items() if name != "method"}
    topic_of = {name: topic for topic, names in TOPICS.items() for name in names.split()}
    sources = False
    for topic in ("data", "rounds", "networks", "training", "privacy", "communication", "run"):
        rows = []
        for name, f in fields.items():
            if topic_of.get(name, "training") == topic:
                text, default = f.description or "", f.get_default()
                source = _SOURCE.search(text)
                if not all(entry in text for entry in registries.get(name, ())):
                    text += f"; one of {', '.join(registries[name])}"
                setting = f"{name}={'' if default is None else default}"
                rows.append((setting, _SOURCE.sub("", text), source[1] if source else ""))
        if rows:
            _print(topic, rows)
        sources |= any(source for _, _, source in rows)
    if sources:
        print("paper: value of the paper; ours: not in the paper; without a note: a default of Vitrail")


def _print(title: str, rows: Iterable[tuple[str, ...]]) -> None:
    from vitrail.utils.console import Console, print_table

    print_table(Console(), rows, title=title)
    print()
