"""The registry of methods: built-in ones, those of installed packages, and those added by `register_method`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    from vitrail.methods.base import BaseMethod

METHODS: Registry[type[BaseMethod]] = Registry(
    "method",
    "vitrail.methods",
    {
        "prism": (
            "vitrail.methods.prism.algorithm:Prism",
            "learns a binary mask of a frozen random generator; clients send one bit per weight",
        ),
        "moments": (
            "vitrail.methods.moments:Moments",
            "clients send noised sums of image features once, the server fits the mask; private, one round",
        ),
        "fedgan": (
            "vitrail.methods.fedgan:FedGan",
            "federated averaging of a conditional GAN, with four ways to synchronise",
        ),
        "mdgan": (
            "vitrail.methods.mdgan:MdGan",
            "one generator on the server, one discriminator per client; images and gradients are exchanged",
        ),
        "psfedgan": (
            "vitrail.methods.psfedgan.algorithm:PsFedGan",
            "the server trains each client's generator from its discriminators and a secret seed, then a classifier",
        ),
        "padpaf": (
            "vitrail.methods.padpaf.algorithm:PaDPaF",
            "federated content, private style: every client has a personal generator of all shared content",
        ),
        "padpafvae": (
            "vitrail.methods.padpaf.vae:PaDPaFVae",
            "the same split of a variational autoencoder: content networks are federated, style networks private",
        ),
        "ditto": (
            "vitrail.methods.baselines.ditto:Ditto",
            "baseline: PaDPaF's networks, all averaged, and a personal copy regularised towards the average",
        ),
        "fedavg": ("vitrail.methods.baselines.fedavg:FedAvg", "baseline: federated averaging of a classifier"),
        "fedprox": ("vitrail.methods.baselines.fedavg:FedProx", "baseline: FedAvg with a proximal term"),
        "scaffold": ("vitrail.methods.baselines.scaffold:Scaffold", "baseline: FedAvg with control variates"),
        "naivemix": (
            "vitrail.methods.baselines.fedmix:NaiveMix",
            "baseline: FedAvg with images mixed with other clients' mean images",
        ),
        "fedmix": (
            "vitrail.methods.baselines.fedmix:FedMix",
            "baseline: FedAvg with mixup approximated from other clients' mean images",
        ),
        "sdafl": (
            "vitrail.methods.baselines.sdafl:SdaFl",
            "baseline: FedAvg with synthetic images that clients' GANs generate once",
        ),
        "fullgan": (
            "vitrail.methods.baselines.fullgan:FullGan",
            "baseline: PS-FedGAN without its secret; generator and discriminator are sent at every step",
        ),
        "gswgan": (
            "vitrail.methods.gswgan:GsWgan",
            "one generator on the server, one Wasserstein critic per client; gradients can be private",
        ),
        "dpfedgan": (
            "vitrail.methods.dpfedgan:DpFedGan",
            "clients train discriminators, which are averaged, the server the generator; updates can be private",
        ),
    },
)
