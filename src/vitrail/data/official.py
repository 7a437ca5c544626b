"""Addresses and MD5 checksums of the official files of public data sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """A file on the internet.

    Args:
        urls: Addresses; they are tried in this order.
        md5: Checksum in hexadecimal digits.
    """

    urls: tuple[str, ...]
    md5: str


def _files(folder: str, checksums: dict[str, str]) -> dict[str, Remote]:
    return {name: Remote((folder + name,), md5) for name, md5 in checksums.items()}


def _drive(md5: str, *ids: str) -> Remote:
    base = "https://drive.usercontent.google.com/download?id="
    return Remote(tuple(f"{base}{i}&export=download&confirm=t" for i in ids), md5)


# MD5 detects truncated and confused files; it is what the publishers provide.
FILES: dict[str, dict[str, Remote]] = {
    "mnist": _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": _files(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}
    ),
    "svhn": _files(
        "http://ufldl.stanford.edu/housenumbers/",
        {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
    ),
    "celeba": {
        "img_align_celeba.zip": _drive(
            "00d2c5bc6d35e252742224ab0c1e8fcb", "0B7EVK8r0v71pZjFTYXZWM3FlRnM", "1cNIac61PSA_LqDFYFUeyaQYekYPc75NH"
        ),
        "list_attr_celeba.txt": _drive("75e246fa4810816ffd6ee81facbd244c", "0B7EVK8r0v71pblRyaVFSWGxPY0U"),
        "list_eval_partition.txt": _drive("d32c9cbf5e040fd4025c592c306e6668", "0B7EVK8r0v71pY0NSMzRuSXJEVkk"),
    },
}
