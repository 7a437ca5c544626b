"""The methods, by name: one line each. Nothing is imported until a method is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vitrail.utils.errors import VitrailError, nearest

METHODS: dict[str, tuple[str, str]] = {
    "prism": (
        "vitrail.methods.prism.algorithm:Prism",
        "one frozen random generator, a learned binary mask; bits travel",
    ),
    "moments": (
        "vitrail.methods.moments:Moments",
        "clients send noised sums of features once, the server finds the mask: private, one round",
    ),
    "fedgan": (
        "vitrail.methods.fedgan:FedGan",
        "federated averaging of a conditional GAN, four synchronisations",
    ),
    "mdgan": (
        "vitrail.methods.mdgan:MdGan",
        "one generator on the server, a discriminator per client; pictures and gradients travel",
    ),
    "psfedgan": (
        "vitrail.methods.psfedgan.algorithm:PsFedGan",
        "the server grows each client's generator from its discriminators and a secret seed; trains a classifier",
    ),
    "padpaf": (
        "vitrail.methods.padpaf.algorithm:PaDPaF",
        "content is federated, style stays: every client has a generator of its own that draws what all know",
    ),
    "padpafvae": (
        "vitrail.methods.padpaf.vae:PaDPaFVae",
        "the same split of a variational autoencoder: content's encoder and decoder federated, style private",
    ),
    "ditto": (
        "vitrail.methods.baselines.ditto:Ditto",
        "padpaf's networks, all of them averaged, and beside them a personal copy, held near; for comparison",
    ),
    "fedavg": ("vitrail.methods.baselines.fedavg:FedAvg", "no generator: one classifier, averaged over the clients"),
    "fedprox": ("vitrail.methods.baselines.fedavg:FedProx", "the same, each client held near the global network"),
    "scaffold": ("vitrail.methods.baselines.scaffold:Scaffold", "the same, local steps corrected by control variates"),
    "naivemix": (
        "vitrail.methods.baselines.fedmix:NaiveMix",
        "the same, pictures mixed with means of others' images",
    ),
    "fedmix": (
        "vitrail.methods.baselines.fedmix:FedMix",
        "the same, mixup approximated from means of others' images",
    ),
    "sdafl": ("vitrail.methods.baselines.sdafl:SdaFl", "the same, helped by pictures that clients' own GANs made once"),
    "fullgan": (
        "vitrail.methods.baselines.fullgan:FullGan",
        "psfedgan without its secret: generator and discriminator both travel at every step, for comparison",
    ),
    "gswgan": (
        "vitrail.methods.gswgan:GsWgan",
        "one generator on the server, a Wasserstein critic per client; gradients can be private",
    ),
    "dpfedgan": (
        "vitrail.methods.dpfedgan:DpFedGan",
        "discriminators are trained by clients and averaged, the generator by the server; updates can be private",
    ),
}


def method_class(name: str) -> type[Any]:
    """The class of a registered method."""
    if name not in METHODS:
        raise VitrailError(f"not a method; {nearest(name, METHODS)}")
    module, _, cls = METHODS[name][0].partition(":")
    found: type[Any] = getattr(import_module(module), cls)
    return found
