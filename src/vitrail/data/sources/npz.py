"""Arrays in a NumPy archive (.npz)."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.arrays import gather
from vitrail.data.dataset import Dataset
from vitrail.data.read_request import ReadRequest
from vitrail.data.sources.npy_files import stored_arrays
from vitrail.utils.errors import Malformed, MissingFiles

# Names of training images, training labels, test images and test labels. MedMNIST's val_ arrays are not used.
_CONVENTIONS = (
    ("images", "labels", "", ""),
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
_CLASSES = "classes"  # names of the labels 0, 1, ...
_NAMES = {_CLASSES, *(name for convention in _CONVENTIONS for name in convention if name)}


def read(request: ReadRequest) -> Dataset:
    """Read the images of an .npz file that follows one of three naming conventions; `classes` names integer labels."""
    path = Path(request.source.argument).expanduser()
    if not path.is_file():
        raise MissingFiles(f"data={request.source}: there is no file", path, "give the path of an .npz file")
    arrays = stored_arrays(path, _NAMES)
    names = next((convention for convention in _CONVENTIONS if convention[0] in arrays), None)
    if names is None:
        raise Malformed(f"{path}: contains none of {', '.join(convention[0] for convention in _CONVENTIONS)}")
    images, labels, test_images, test_labels = (arrays.get(name) for name in names)
    train, test, classes = gather(
        (images, labels), (test_images, test_labels), request.size, str(path), arrays.get(_CLASSES)
    )
    return request.dataset(train, test, classes)
