"""The registry of methods: built-in ones, those of installed packages, and those added by `register_method`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    from vitrail.methods.base import BaseMethod

_CLASSES = {
    "prism": "prism.algorithm:Prism",
    "moments": "moments:Moments",
    "fedgan": "fedgan:FedGan",
    "mdgan": "mdgan:MdGan",
    "psfedgan": "psfedgan.algorithm:PsFedGan",
    "padpaf": "padpaf.algorithm:PaDPaF",
    "padpafvae": "padpaf.vae:PaDPaFVae",
    "ditto": "baselines.ditto:Ditto",
    "fedavg": "baselines.fedavg:FedAvg",
    "fedprox": "baselines.fedavg:FedProx",
    "scaffold": "baselines.scaffold:Scaffold",
    "naivemix": "baselines.fedmix:NaiveMix",
    "fedmix": "baselines.fedmix:FedMix",
    "sdafl": "baselines.sdafl:SdaFl",
    "fullgan": "baselines.fullgan:FullGan",
    "gswgan": "gswgan:GsWgan",
    "dpfedgan": "dpfedgan:DpFedGan",
}
_SUMMARIES = {
    "prism": "learns a binary mask of a frozen random generator; clients send one bit per weight",
    "moments": "clients send noisy sums of image features once, then the server trains alone; private",
    "fedgan": "federated averaging of a conditional GAN, with four ways to synchronise",
    "mdgan": "one generator on the server, one discriminator per client; images and gradients are exchanged",
    "psfedgan": "the server trains each client's generator from its discriminators and a secret seed, "
    "then a classifier",
    "padpaf": "federated content, private style: every client has a personal generator of all shared content",
    "padpafvae": "the same split of a variational autoencoder: content networks are federated, style networks private",
    "ditto": "baseline: PaDPaF's networks, all averaged, and a personal copy regularised towards the average",
    "fedavg": "baseline: federated averaging of a classifier",
    "fedprox": "baseline: FedAvg with a proximal term",
    "scaffold": "baseline: FedAvg with control variates",
    "naivemix": "baseline: FedAvg with images mixed with other clients' mean images",
    "fedmix": "baseline: FedAvg with mixup approximated from other clients' mean images",
    "sdafl": "baseline: FedAvg with synthetic images that clients' GANs generate once",
    "fullgan": "baseline: PS-FedGAN without its secret; generator and discriminator are sent at every step",
    "gswgan": "one generator on the server, one Wasserstein critic per client; gradients can be private",
    "dpfedgan": "clients train discriminators, which are averaged, the server the generator; updates can be private",
}

METHODS: Registry[type[BaseMethod]] = Registry(
    "method",
    "vitrail.methods",
    {name: (f"vitrail.methods.{where}", _SUMMARIES[name]) for name, where in _CLASSES.items()},
)
