"""Names of version 0.1.0 and their current ones, so that old run folders load and run ids stay the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_HEADER = "# A run of vitrail 0.1."  # first line of a settings.toml of that version

_NAMES = """
    held_out=test_fraction per_round=clients_per_round dropout=client_dropout secure=secagg_threshold
    entropy=noise_source from=init_from measure_every=eval_every server_share=server_fraction batch=batch_size
    classifier_batch=classifier_batch_size d_batch=d_batch_size gan_batch=gan_batch_size asked=active_clients
    clamp=theta_clamp prox=prox_mu mu=prox_mu pull=ditto_lambda path=score_layers wire=wire_dtype
    pictures=fake_dtype weights=weighting made=shared_images sure=pseudo_label_threshold mean_of=images_per_mean
    means=max_means mix=mix_lambda most=max_per_class colluding=max_colluding penalty=gradient_penalty
    real_share=real_fraction decay=lr_decay d_own=client_discriminators d_kind=d_architecture
    key_from=key_source update_norm=max_update_norm gradient=straight_through steps=steps_per_message
    z=latent_dim latent=latent_dim clip=max_grad_norm average=ema_decay
"""  # old=current
_COMMON = dict(pair.split("=") for pair in _NAMES.split())
_OF_METHOD: dict[str, dict[str, str]] = {
    "prism": {"average": "moment_averaging", "clip": "theta_clip", "pool": "pool_size"},
    "moments": {"pool": "pool_size"},
    "gswgan": {"pool": "num_fakes"},
    "dpfedgan": {"clip": "max_update_norm"},
}
_OLD_LATENT = ("padpaf", "padpafvae", "ditto")  # `latent` there, `z` in the other methods
_ADDED = {method: {"precision": "float32"} for method in ("prism", "moments")}  # another value is the default now
_ROW = {"asked": "requested", "answered": "replied", "left_out": "excluded", "far_from_others": "outliers"}


def current_settings(text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file under their current names.

    Args:
        text: The content of the settings file; its first line shows the version.
        values: The parsed settings.

    Examples:
        >>> current_settings("# A run of vitrail 0.1.0; ...", {"method": "prism", "batch": 50, "clip": 0.1})
        {'precision': 'float32', 'method': 'prism', 'batch_size': 50, 'theta_clip': 0.1}
    """
    if not text.startswith(_HEADER):
        return dict(values)
    method = str(values.get("method"))
    names = _COMMON | _OF_METHOD.get(method, {})
    return _ADDED.get(method, {}) | {names.get(key, key): value for key, value in values.items()}


def original_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names of version 0.1.0, from which run ids are derived.

    Examples:
        >>> original_settings({"method": "fedprox", "batch_size": 16, "prox_mu": 0.1})
        {'method': 'fedprox', 'batch': 16, 'mu': 0.1}
    """
    method = str(values["method"])
    names = _COMMON | _OF_METHOD.get(method, {})
    former = {new: old for old, new in names.items() if new not in ("prox_mu", "latent_dim")}
    former["prox_mu"] = "mu" if method == "fedprox" else "prox"
    former["latent_dim"] = "latent" if method in _OLD_LATENT else "z"
    return {former.get(key, key): value for key, value in values.items()}


def new_names(old: str, known: Collection[str]) -> list[str]:
    """Return the current names of a setting of version 0.1.0 that are known; for hints.

    Examples:
        >>> new_names("entropy", {"noise_source", "seed"}), new_names("clip", {"theta_clip"}), new_names("x", {"x_y"})
        (['noise_source'], ['theta_clip'], [])
    """
    found = [_COMMON.get(old), *(names.get(old) for names in _OF_METHOD.values())]
    return [name for name in found if name is not None and name in known]


def current_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.jsonl under its current names.

    Examples:
        >>> current_row({"round": 0, "answered": 3})
        {'round': 0, 'replied': 3}
    """
    return {_ROW.get(key, key): value for key, value in row.items()}
