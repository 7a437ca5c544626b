"""Print the folder of the Flower app: `flwr run "$(python -m vitrail.engines.flower)" ...`."""

from pathlib import Path

print(Path(__file__).parent / "app")
