"""`flwr run "$(python -m vitrail.engines.flower)" ...`: where the app is that `flwr run` takes."""

from pathlib import Path

print(Path(__file__).parent / "app")
