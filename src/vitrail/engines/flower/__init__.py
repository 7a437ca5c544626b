"""The Flower engine: messages over Flower's Grid, and a ClientApp that answers. Telemetry of Flower and Ray is off."""

import os

from vitrail.utils.errors import VitrailError

for _key, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one machine: Ray listens on loopback only
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a future default of Ray; avoids a warning
}.items():
    os.environ.setdefault(_key, _value)  # read when Flower and Ray are imported


def check_installed() -> None:
    """Raise VitrailError with the remedy if Flower or Ray is not installed."""
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError:
        raise VitrailError(
            'engine=flower: Flower is not installed; use `pip install "vitrail[flower]"`, or omit the setting'
        ) from None
