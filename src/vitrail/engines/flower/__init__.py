"""Flower carries the messages: `ask` over its Grid, and a ClientApp that answers. Nothing is sent to anybody else."""

import os

from vitrail.utils.errors import VitrailError

for _key, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one machine: Ray listens on loopback, as it does there
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray will do, and it warns less
}.items():
    os.environ.setdefault(_key, _value)  # read when Flower and Ray are imported


def check_installed() -> None:
    """Refuse early where Flower or Ray is missing."""
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError:
        raise VitrailError(
            'engine=flower: Flower is not installed; `pip install "vitrail[flower]"` does it, or leave the setting out'
        ) from None
