"""PaDPaF: Partial Disentanglement with Partially-Federated GANs.

Almansoori, Horváth, Takáč; 2024. A picture is x = G^c(z^c, G^s_i(z^s), y). Content is federated: the generator's
convolutions G^c and the content discriminator D^c. Style is client i's own: the vectorizer G^s_i, the conditional
BatchNorm through which its style enters G^c, and the style discriminator D^s_i. Nothing of it is declared, so nothing
of it leaves. Barlow Twins keeps D^c's features alike where z^c is, and D^s's where z^s is (Eq. 14). The server's half
and what a client keeps are in partly.py, its steps in padpaf_training.py.

What differs from the paper: the server takes the mean (server_opt="adam" is the paper's step, of a size that does not
depend on how far clients went: after few local steps it goes too far) and weighs clients by their pictures
(weights="uniform" is its plain mean); the count of steps after which it is G's turn goes on over rounds, or a client
with few pictures would never train G; Barlow Twins' features are centred; BatchNorm's statistics are a batch's in
training and come from noise afterwards, so they are in no message; the noise that its code adds to pictures and
channels is left out. loss="wasserstein" is the paper's, "hinge" its code's. With label_maps="private", as the paper has
it, what a label means to G is each client's own too: the server's generator then draws without regard to labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.padpaf.losses import Form
from vitrail.methods.padpaf.partial_federation import PartiallyFederated, ProximalTerm
from vitrail.methods.padpaf.training import Networks, train
from vitrail.nets.content_style import Content, Style
from vitrail.nets.spectral_discriminator import SpectralDiscriminator
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

FEDERATED = PartiallyFederated.of_content  # θ^fed: the parameters of G^c and of D^c


@dataclass(frozen=True)
class PaDPaF(PartiallyFederated):
    """PaDPaF's settings; the paper's for MNIST are width=64, latent_dim=128, style_depth=8, rounds=300,
    server_opt=adam."""

    loss: Annotated[Form, Field(description="the GAN's loss: hinge (published code), wasserstein (the paper)")] = (
        "hinge"
    )
    d_steps: Annotated[int, Field(ge=1, description="steps of D to one of G (T_D)")] = 3
    fake_labels: Annotated[Literal["all", "own"], Field(description="labels of fakes: all, or those of the client")] = (
        "all"
    )

    def content(self) -> gan.Nets:
        """G^c and D^c."""
        t = self.task
        return {"generator": self.generator(), "discriminator": SpectralDiscriminator(t.shape, t.classes, self.width)}

    def style(self, content: nn.Module) -> gan.Nets:
        """G^s_i with its conditional BatchNorm, and D^s_i."""
        assert isinstance(content, Content)  # noqa: S101
        return {
            "style": Style(content, self.style_depth),
            "style_discriminator": SpectralDiscriminator(self.task.shape, 0, self.width),
        }

    def learn(
        self, nets: gan.Nets, state: State, pull: ProximalTerm, t: int, data: Images, rng: Rng
    ) -> tuple[State, NDArray[Any]]:
        """The client's loop with its own Adam for G and for D, which goes on where it was."""
        model = Networks(nets, self.task.device)
        eta_i = self.lr * self.lr_decay**t
        averages = state.get("optimizers", {"G": None, "D": None})
        optimizers: gan.Optimizers = {
            "G": gan.adam(model.G, eta_i, self.betas, averages["G"]),
            "D": gan.adam(model.D, 2 * eta_i, self.betas, averages["D"]),
        }
        steps, losses = train(self, model, optimizers, pull, data, state.get("t", 0), rng)
        return {"t": steps, "optimizers": {name: o.state_dict()["state"] for name, o in optimizers.items()}}, losses
