"""PRISM: Privacy-Preserving Improved Stochastic Masking for Federated Generative Models.

Seo, Han, Yoo; ICLR 2025. Every party builds the same frozen random network W from one seed. Clients learn scores s of
a binary mask over W by matching feature moments (Eq. 1) and upload one mask; the server averages masks into θ.

Differences from the paper (docs/results.md has measurements; the setting in brackets restores the paper's version):

- Real moments are computed once per client; with labels, moments are matched per class.
- Uploaded masks are sampled jointly, so that their mean is closer to θ (sampling="independent").
- The fakes' moments are averaged exponentially (moment_averaging="adam").
- Scores start wider, move faster and follow a cosine schedule (score_std=1, lr=0.1, schedule="constant").
- The exported mask is θ > 1/2 (final_mask="sample"). MADA is off by default (mada="sampled").
- Messages are entropy-coded with what both sides know (messages.py). Privacy mechanisms: mechanisms.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods import gan, masks
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, setting
from vitrail.methods.prism import mechanisms, messages
from vitrail.methods.prism.loss import build_loss
from vitrail.methods.released_sums import feature_summary
from vitrail.nets.features import FEATURES, parse_layers
from vitrail.nets.generators import GENERATORS
from vitrail.nets.masked import sample_mask
from vitrail.nets.precision import Precision
from vitrail.privacy.feature_sums import Summary
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.codecs import Array
from vitrail.wire.message import digest
from vitrail.wire.range_coder import encode_values
from vitrail.wire.scores import Scores


@dataclass(frozen=True)
class Prism(masks.MaskMethod):
    """PRISM, with its variants PRISM-α and MADA: the settings, then Algorithm 1 from top to bottom."""

    # The frozen network W and its initial scores.
    generator: str = setting("small", "generator network (paper: resnet)", check=GENERATORS.check)
    width: float = setting(1.0, "channel multiplier of the generator (paper: 1)", gt=0, le=8)
    score_init: Literal["normal", "uniform"] = setting(
        "normal", "initial scores: normal, N(0, score_std²), or uniform θ (paper: normal)"
    )
    score_std: float = setting(3.0, "standard deviation of normal initial scores (paper: 1)", gt=0, le=1e3)

    # Local training.
    local_steps: int = setting(40, "training iterations per client and round (paper: 100)", ge=1)
    precision: Precision = setting(
        "auto", "arithmetic of the networks; auto: bfloat16 if the processor has instructions for it (ours)"
    )
    batch_size: int = setting(50, "generated images per iteration (paper: 64)", ge=2)
    lr: float = setting(0.3, "Adam's learning rate for the scores (paper: 0.1)", gt=0, le=1e3)
    schedule: Literal["cosine", "constant"] = setting("cosine", "learning rate over the rounds (paper: constant)")
    straight_through: Literal["identity", "theta"] = setting(
        "identity", "gradient of the mask by θ: 1 with identity, θ with theta (published code: theta)"
    )
    loss: Literal["moments", "gan"] = setting(
        "moments", "feature moments (Eq. 1), or a discriminator on each client (paper: moments)"
    )
    features: str = setting(
        "auto", "feature network ψ; auto: chosen by the data (paper: vgg19)", check=FEATURES.check_or_auto
    )
    layers: str = setting("all", "layers of ψ to match: all, or indices from 0 such as 1,3,7 (paper: all)")
    moment_averaging: Literal["exponential", "adam", "none"] = setting(
        "exponential", "how moments of generated images are averaged over batches; adam is AMA (paper: adam)"
    )
    smoothing: float = setting(0.1, "moment_averaging=exponential: weight of the newest batch (ours)", gt=0, le=1)
    ama_lr: float = setting(0.005, "moment_averaging=adam: learning rate (paper: 0.005)", gt=0, le=1e3)

    # Upload.
    sampling: Literal["stratified", "independent"] = setting(
        "stratified", "masks of one round are sampled jointly or independently (paper: independent)"
    )
    coding: Literal["entropy", "packed", "klms"] = setting(
        "entropy", "mask coding: entropy coding under θ_t, packed bits, or KLMS (random candidates; lossy) (ours)"
    )
    klms_bits: int = setting(6, "klms: bits per block (ours)", ge=1, le=12)
    klms_block: int = setting(64, "klms: mask elements per block (ours)", ge=1)
    alpha: float = setting(0.0, "PRISM-α: percentage of layers that send scores (paper: 0 or 70)", ge=0, le=100)
    score_layers: Literal["backward", "forward"] = setting(
        "backward", "PRISM-α: the last layers send scores, or the first (paper: backward)"
    )
    score_form: Literal["s", "theta"] = setting("s", "PRISM-α: score layers send s (Section 4.2) or θ (Algorithm 2)")
    score_codec: Literal["float16", "float32"] = setting(
        "float16", "PRISM-α: number format of score layers (paper: float32)"
    )

    # Aggregation and export.
    theta_clamp: float = setting(
        0.02, "averaged θ is clamped to [theta_clamp, 1 - theta_clamp] (published code: 0.01)", ge=0.001, lt=0.5
    )
    mada: Literal["off", "sampled", "expected"] = setting(
        "off", "MADA: move scores by λ, the Hamming distance of sampled masks (paper: sampled)"
    )
    final_mask: Literal["mode", "sample"] = setting(
        "mode", "exported mask: θ > 1/2 (mode), or a sample of Bern(θ) (paper: sample)"
    )

    # Privacy.
    privacy: Literal["none", "moments", "mask-update", "paper"] = setting(
        "none", "none; moments (noise once), mask-update (every round), paper (assumed, not proven)"
    )
    pool_size: int = setting(
        4, "privacy=moments: layers of ψ are averaged to at most this many positions per side (ours)", ge=1
    )
    max_update_norm: float = setting(
        1.0, "mask-update: the change of θ is scaled to at most this norm (ours)", ge=1e-6, le=1e4
    )
    theta_clip: float = setting(
        0.1, "mask-update, paper: θ with noise is clipped to [c, 1 - c] (paper: 0.1)", ge=1e-6, lt=0.5
    )

    betas: ClassVar = (0.5, 0.999)  # of the scores' Adam
    d_lr: ClassVar = 2e-4  # loss=gan: Adam's learning rate of D; its β are (0.5, 0.999), as DCGAN's
    mechanisms: ClassVar = ("moments", "mask-update", "paper")
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 12}
    added_later: ClassVar[Mapping[str, Any]] = {"precision": "float32"}

    # -- Algorithm 1: the server initializes W and s, and broadcasts the scores -------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Draw the seed of W and of the first scores s_0."""
        if start is None:
            seed = rng.child("network").seed()
            return {"seed": seed, "s": self.initial_scores(seed), "closed": 0, "told": {}}
        if start["s"].shape != (self.size,):
            raise VitrailError(
                f"init_from=: that run has {start['s'].size:,} mask elements, this one {self.size:,}; choose a run "
                "with the same generator, width, image size and labels"
            )
        return {**start, "told": {}}

    def initial_scores(self, seed: int) -> Scores:
        """Return s_0."""
        return scores.first(seed, self.size, self.score_init, self.score_std)

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Give every client a stratum; code all of s_t if a client needs it."""
        started = {**server, "who": list(clients), "draws": rng.child("public draws").seed()}
        if server["closed"] and not all(messages.has_last_scores(server, client) for client in clients):
            started["full"] = encode_values(server["s"])
        return started, clients

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:
        """Send the seed of W and s_t."""
        return messages.encode_scores(self, server, client, full)

    # -- Algorithm 1, client side -----------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train the scores on the client's images, and upload a binary mask."""
        s_t = messages.decode_scores(self, state, message.parts)  # s_t^k ← s_t: download the score vector
        W = masks.build_network(self, messages.as_int(message.parts["seed"]))
        loss = build_loss(self, data, rng, state.get("loss", {}))  # L_MMD^k with the real features ψ(D^k)

        s = torch.from_numpy(scores.real(s_t)).to(self.task.device).requires_grad_()
        optimizer = masks.score_optimizer(self, s, self.lr, message.round, state.get("optimizer", {}))
        draw, losses = rng.child("training").torch(), []
        for i in range(self.local_steps):
            z, y = masks.sample_inputs(self, i, W.z, loss.present, draw)
            theta = torch.sigmoid(s)  # θ ← Sigmoid(s)
            M = sample_mask(theta, draw, self.straight_through == "theta")  # M ~ Bern(θ)
            fakes = W(M, z, y if self.task.classes else None)  # D_fake ← (W⊙M)(z): generate fake images
            L = loss(fakes, y)  # L_MMD(ψ(D), ψ(D_fake)), Eq. 1 (features and moments: loss.py)
            gan.step(optimizer, L)  # s ← s - η ∇L
            losses.append(L.detach())

        parts = self.upload(s.detach().cpu(), s_t, message, rng)
        if self.sends_loss:
            parts["metric.loss"] = np.array([torch.stack(losses).mean().item()], np.float32)
        stored: State = {"optimizer": dict(optimizer.state[s]), "loss": loss.state(), "s": s_t}
        return stored, Reply(parts, state_id=digest(s_t.tobytes()))

    def upload(self, s: Tensor, s_t: Scores, message: ServerMessage, rng: Rng) -> dict[str, Array]:
        """Return a mask M ~ Bern(θ) for mask layers, and scores for score layers (Algorithm 2)."""
        theta = torch.sigmoid(s)  # θ ← Sigmoid(s)
        if self.privacy in ("mask-update", "paper"):  # θ̃ ← θ + N(0, Iσ²), clipped to [c, 1-c]
            theta = mechanisms.noised_theta(self, theta, s_t, self.source(rng.child("noise")))
            s = torch.logit(theta)
        parts: dict[str, Array] = {}
        (masked, scored), (has_mask, has_scores) = self.split, self.elements
        if has_mask and self.coding == "klms":
            parts["mask"] = messages.encode_candidates(self, s.numpy()[masked], s_t[masked], message, rng)
        elif has_mask:
            M = (self.uniform(message, rng) < theta).numpy()[masked]  # M ~ Bern(θ̃)
            parts["mask"] = messages.encode_mask(self, M, s_t[masked])
        if has_scores:
            parts["scores"] = (theta if self.score_form == "theta" else s.clamp(-32, 32)).numpy()[scored]
        return parts

    def uniform(self, message: ServerMessage, rng: Rng) -> Tensor:
        """Return the uniform numbers that θ is compared with.

        They are the client's own, or a draw common to all clients, shifted by k/K for client k. Either way each mask
        is Bern(θ). The mean of K independent masks has variance θ(1-θ)/K, an error that adds up over the rounds; the
        mean of shifted ones is within 1/K of θ.
        """
        if self.sampling == "independent":
            return torch.rand(self.size, generator=rng.child("upload").torch())
        k, K = map(int, message.parts["stratum"])
        common = Rng((messages.as_int(message.parts["draws"]),)).child("strata").torch()
        return (torch.rand(self.size, generator=common) + k / K) % 1

    # -- Algorithm 1, server side -----------------------------------------------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Average the masks into θ, convert θ to scores, and take MADA's step."""
        s_t, t, (masked, scored) = server["s"], server["closed"], self.split
        s_agg, counts = s_t.copy(), None
        if "mask" in sums.values:
            counts = sums.values["mask"].astype(np.int32)  # Σ_k M_t^k
            # θ_{t+1} ← Σ_k M_t^k / K; s_agg ← Sigmoid⁻¹(θ_{t+1}) (both by a table in `from_counts`)
            s_agg[masked] = scores.from_counts(counts, sums.clients, self.theta_clamp)
        if "scores" in sums.values:
            mean = sums.values["scores"] / sums.clients
            theta = self.score_form == "theta"
            s_agg[scored] = scores.from_theta(mean, self.theta_clamp) if theta else scores.on_grid(mean)
        lam = scores.ONE  # λ = 1
        if self.mada != "off":  # λ ← hd(M_t, Bern(θ_{t+1}))
            lam = scores.distance(s_t, s_agg, rng.child("mada").numpy() if self.mada == "sampled" else None)
        s = scores.step(s_t, s_agg, lam)  # s_{t+1} ← (1 - λ) s_t + λ s_agg
        return {
            "seed": server["seed"],
            **messages.encode_step(self, s_t, s, counts, sums.clients),
            "s": s,
            "base": digest(s_t.tobytes()),
            "clients": sums.clients,
            "lambda": lam,
            "closed": t + 1,
            "told": {**server["told"], **dict.fromkeys(server["who"], t)},  # these clients may have s_t
        }

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """Return the final model W* = W⊙M*, M* ~ Bern(θ_T), as a seed and a coded mask; and θ_T."""
        return masks.export(self, server["seed"], server["s"], bool(server["closed"]))

    # -- What both sides know ---------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of mask elements of each layer."""
        return masks.layer_sizes(self)

    @property
    def size(self) -> int:
        """Number of mask elements."""
        return sum(self.sizes)

    @cached_property
    def split(self) -> tuple[slice, slice]:
        """Elements sent as a mask, and those sent as scores: IsScoreLayer of Algorithm 2, for α% of the layers."""
        n = round(self.alpha / 100 * len(self.sizes))
        if self.score_layers == "forward":
            cut = sum(self.sizes[:n])
            return slice(cut, self.size), slice(0, cut)
        cut = sum(self.sizes[: len(self.sizes) - n])
        return slice(0, cut), slice(cut, self.size)

    @property
    def elements(self) -> tuple[int, int]:
        """Number of elements sent as a mask, and number sent as scores."""
        masked, scored = self.split
        return masked.stop - masked.start, scored.stop - scored.start

    @property
    def sends_loss(self) -> bool:
        """Whether the training loss is sent: not where only the mask is protected by noise."""
        return self.privacy in ("none", "moments")

    @property
    def feature_network(self) -> str:
        return "" if self.loss == "gan" else self.features

    def reply_spec(self) -> Mapping[str, PartSpec]:
        parse_layers(self.features, self.layers)
        mechanisms.check_settings(self)
        return messages.reply_spec(self)

    def base_mechanism(self) -> Mechanism | None:
        return None if self.privacy == "none" else mechanisms.build_mechanism(self)

    def multiplier(self, found: Mechanism) -> float:
        return mechanisms.paper_multiplier(self) if self.privacy == "paper" else super().multiplier(found)

    def bound(self, found: Mechanism) -> str:
        return mechanisms.bernoulli_bound(self, found)

    def noised_masks(self) -> Prism | None:
        """Return itself where the bits of masks drawn from θ̃ are sent."""
        noised = self.privacy in ("mask-update", "paper")
        return self if noised and self.coding != "klms" and self.elements[0] else None

    def feature_summary(self) -> Summary | None:
        """Return what a client sums of an image, with `privacy=moments`."""
        return feature_summary(self) if self.privacy == "moments" else None

    def released_sums(self, parts: Mapping[str, Array], state: State) -> Array:  # noqa: ARG002
        """Return the sums that the client stores: what it sends is computed from them."""
        return state["loss"]["released"]
