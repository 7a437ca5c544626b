"""One-shot moments: clients send noisy sums of features once, and the server trains a generator that matches them.

PRISM's loss (Eq. 1) needs only sums over each client's images, so they can be released once, as DP-MEPF does with
central data (Harder, Jalali, Sutherland, Park; TMLR 2023). All rounds after the first run on the server alone and use
only the released sums, so ε does not grow. Sums add up: how images are divided among clients changes only the noise.

Differences from the paper (DP-MEPF):

- Federated: each client adds noise to its own sums; with secure aggregation each adds a share of one noise.
- The generator has trained weights, of which an exponential average is exported, or (`network=masked`) is PRISM's, a
  mask over a frozen random network.
- The server refuses sums that are impossible for the number of images they count (`SumBounds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch

from vitrail.data.dataset import Images
from vitrail.methods import gan, masks
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, setting
from vitrail.methods.released_sums import AveragedMoments, feature_summary, feature_sums, match_released_sums
from vitrail.nets.feature_moments import FeatureMoments
from vitrail.nets.features import FEATURES, layer_plan, parse_layers
from vitrail.nets.generators import GENERATORS
from vitrail.nets.masked import sample_mask
from vitrail.nets.precision import Precision, autocast
from vitrail.privacy.feature_sum_messages import SumBounds, pack, unpack
from vitrail.privacy.feature_sums import Summary, noise_share, noised, pooled_size, sensitivity, sensitivity_reason
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class Moments(masks.MaskMethod):
    """One-shot moments: settings, client, server."""

    # The sums that clients release.
    privacy: Literal["moments", "none"] = setting("moments", "sums with noise, or without (not private)")
    features: str = setting(
        "auto",
        "feature network ψ: auto, vitrail-fashion, vitrail-cifar or vgg19 (paper: vgg19)",
        check=FEATURES.check_or_auto,
    )
    layers: str = setting("all", "layers of ψ to match: all, or indices from 0 such as 1,3,7 (paper: all)")
    pool_size: int = setting(8, "layers of ψ are averaged to at most this many positions per side", ge=1)
    max_colluding: int = setting(
        0, "with secagg_threshold=: largest number of clients that collude with the server", ge=0
    )
    max_per_class: int = setting(
        16_000,
        "largest number of images per class and client. With secure aggregation the client drops the "
        "rest; otherwise, in deployment, the server refuses more",
        ge=1,
        le=10**8,
    )

    # The network and its training on the server.
    network: Literal["auto", "dense", "masked"] = setting(
        "auto", "what is trained: the weights (dense, auto), or a mask over random ones (kilobytes, worse images)"
    )
    generator: str = setting(
        "auto", "generator network; auto: smooth for dense, small for masked", check=GENERATORS.check_or_auto
    )
    width: float = setting(1.0, "channel multiplier of the generator", gt=0, le=8)
    score_init: Literal["normal", "uniform"] = setting(
        "normal", "initial scores: normal, N(0, score_std²), or uniform θ"
    )
    score_std: float = setting(3.0, "standard deviation of normal initial scores", gt=0, le=1e3)
    local_steps: int = setting(20, "training iterations of the server per round", ge=1)
    precision: Precision = setting(
        "auto", "arithmetic of the networks; auto: bfloat16 if the processor has instructions for it"
    )
    batch_size: int = setting(50, "generated images per iteration", ge=2)
    lr: float = setting(0.3, "Adam's learning rate for the scores", gt=0, le=1e3)
    dense_lr: float = setting(0.002, "network=dense: Adam's learning rate for the weights", gt=0, le=1e3)
    ema_decay: float = setting(0.998, "network=dense: decay of the average of weights that is exported", ge=0, lt=1)
    schedule: Literal["cosine", "constant"] = setting("cosine", "learning rate over the rounds")
    smoothing: float = setting(0.1, "weight of the newest batch in the average of generated moments", gt=0, le=1)
    straight_through: Literal["identity", "theta"] = setting(
        "identity", "gradient of the mask by θ: 1 (identity) or θ (theta)"
    )
    final_mask: Literal["mode", "sample"] = setting("mode", "exported mask: θ > 1/2 (mode), or a sample of Bern(θ)")

    betas: ClassVar = (0.5, 0.999)  # of Adam
    max_replies: ClassVar[int] = 1
    mechanisms: ClassVar = ("moments",)
    default_epsilon: ClassVar = 9.8
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 41}
    added_later: ClassVar[Mapping[str, Any]] = {
        "network": "masked",
        "dense_lr": 0.002,
        "ema_decay": 0.998,
        "precision": "float32",
    }

    def auto_settings(self, data: str) -> Mapping[str, Any]:
        """Return values for settings of "auto": as PRISM's, and a generator for the weights or for the mask."""
        fitting = {"network": "dense", "generator": "small" if self.network == "masked" else "smooth"}
        own = {name: value for name, value in fitting.items() if getattr(self, name) == "auto"}
        return {**super().auto_settings(data), **own}

    # -- Round 1: every client releases its sums; it replies in no later round --------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Draw the first weights, or the seed of the frozen network W and of the first scores."""
        if start is not None:
            raise VitrailError("init_from=: moments cannot continue an earlier run, it starts from what clients send")
        seed = rng.child("network").seed()
        if self.network != "masked":
            return {"seed": seed, **masks.first_weights(self, seed), "t": 0}
        size = sum(masks.layer_sizes(self))
        first = scores.first(seed, size, self.score_init, self.score_std)
        return {"seed": seed, "s": torch.from_numpy(scores.real(first)), "t": 0}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Select clients until the sums have arrived; after that the server runs rounds alone."""
        return server, [] if "sums" in server else clients

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send an empty request: the settings describe what is requested."""
        return Broadcast({})

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:  # noqa: ARG002
        """Return the sums of features by class, with noise.

        A repeated request, as after a void round, gets the same reply. Not so with secure aggregation: the difference
        of two secure sums with the same noise would show what one client sent.
        """
        if "sent" in state and not self.task.secagg_threshold:
            return state, Reply({"sums": state["sent"]})
        sums, source = feature_sums(self, data), self.source(rng.child("noise"))
        sent: Array
        if self.task.secagg_threshold:
            sent = noise_share(sums, self.share, source, self.largest).reshape(-1)
        else:
            sent = pack(noised(sums, self.sigma, source), self.sigma)
        return {"sent": sent}, Reply({"sums": sent})

    # -- Rounds 2, 3, ...: the server alone matches the released sums -----------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Store the sums in the first round; train against them in all others."""
        if "sums" in server:
            return self.train(server, rng)
        total = sums.values["sums"].reshape(self.kinds, -1)
        return {**server, "sums": total, "clients": sums.clients, "t": 1}

    def train(self, server: State, rng: Rng) -> State:
        """Train the generator for local_steps."""
        loss, draw = self.loss(server), rng.child("training").torch()
        train = self.train_weights if self.network != "masked" else self.train_mask
        after = {**server, **train(server, loss, draw), "t": server["t"] + 1}
        if loss.smooth is not None:
            after |= {"smooth": loss.smooth.tree(), "batches": loss.batches}
        return after

    def train_mask(self, server: State, loss: AveragedMoments, draw: torch.Generator) -> State:
        """Train the scores s of a mask."""
        W = masks.build_network(self, server["seed"])
        s = server["s"].to(self.task.device).clone().requires_grad_()
        optimizer = masks.score_optimizer(self, s, self.lr, server["t"], server.get("optimizer", {}))
        for i in range(self.local_steps):
            z, y = masks.sample_inputs(self, i, W.z, loss.present, draw)
            theta = torch.sigmoid(s)  # θ ← Sigmoid(s)
            M = sample_mask(theta, draw, self.straight_through == "theta")  # M ~ Bern(θ)
            fakes = W(M, z, y if self.task.classes else None)  # (W⊙M)(z)
            gan.step(optimizer, loss(fakes, y))  # PRISM's Eq. 1, on the moments that the sums give
        return {"s": s.detach().cpu(), "optimizer": dict(optimizer.state[s])}

    def train_weights(self, server: State, loss: AveragedMoments, draw: torch.Generator) -> State:
        """Train the weights of G, and their exponential average."""
        G = masks.dense_network(self, server["weights"])
        average = masks.dense_network(self, server["average"]).requires_grad_(False)
        lr = masks.learning_rate(self, self.dense_lr, server["t"])
        optimizer = gan.adam(G, lr, self.betas, server.get("optimizer"))
        for i in range(self.local_steps):
            z, y = masks.sample_inputs(self, i, G.z, loss.present, draw)
            with autocast(z, self.precision):
                fakes = G(z, y if self.task.classes else None)
            gan.step(optimizer, loss(fakes.float(), y))
            n = (server["t"] - 1) * self.local_steps + i
            decay = min(self.ema_decay, (1 + n) / (10 + n))  # a short average at first
            torch._foreach_lerp_(list(average.parameters()), [w.detach() for w in G.parameters()], 1 - decay)
        return {
            "weights": masks.weights_of(G),
            "average": masks.weights_of(average),
            "optimizer": optimizer.state_dict()["state"],
        }

    def loss(self, server: State) -> AveragedMoments:
        """Return the loss against the released sums, with the average of generated moments of the last round."""
        sigma = self.share * math.sqrt(server["clients"])
        loss = match_released_sums(self, server["sums"], sigma, self.smoothing, {})
        if "smooth" in server:
            loss.smooth, loss.batches = FeatureMoments.from_tree(server["smooth"], self.task.device), server["batches"]
        return loss

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """Return the averaged weights; with `network=masked`, W⊙M* as a seed and a coded mask, and θ."""
        if self.network != "masked":
            return {"generator": masks.export_weights(self, server["seed"], server["average"])}
        return masks.export(self, server["seed"], scores.on_grid(server["s"].numpy()), server["t"] > 1)

    # -- The release and its noise ----------------------------------------------------------------------------------

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        secure = self.task.secagg_threshold
        if secure and secure <= self.max_colluding:
            raise VitrailError(
                f"max_colluding={self.max_colluding} with secagg_threshold={secure}: no honest client would be left to "
                "add noise; lower max_colluding or raise secagg_threshold"
            )
        trust = "no one: noise is added before anything leaves the client"
        if secure:
            trust = (
                f"at least {secure - self.max_colluding} of the clients that reply add their share of the noise and do "
                "not disclose it, and the server forwards all clients' keys unchanged, or clients know them (peer-keys)"
            )
        return Mechanism(
            name="moments",
            unit="example",
            adjacency="replace one",
            sensitivity=sensitivity(self.kinds),
            why=sensitivity_reason(self.kinds),
            noise=Noise(1.0, discrete=bool(secure)),
            once=not secure,  # a second secure sum, after a void round, has fresh noise: it is a second release
            leaves=f"{self.numbers:,} noised sums of features, once"
            + ", of which only the total is seen" * bool(secure),
            trust=trust,
            noised_by="all clients" if secure else "client",
            own_share=1 / math.sqrt(secure - self.max_colluding) if secure else 0.0,
        )

    def feature_summary(self) -> Summary:
        """Return what a client sums of an image."""
        return feature_summary(self)

    @property
    def sigma(self) -> float:
        """σ of the noise that the mechanism needs, on the grid of the sums."""
        return self.mechanism.sigma * feature_summary(self).grid if self.mechanism else 0.0

    @property
    def share(self) -> float:
        """σ of the noise that one client adds; with secure aggregation, honest clients add up to `sigma`."""
        secure = self.task.secagg_threshold
        return self.sigma / math.sqrt(secure - self.max_colluding) if secure else self.sigma

    def reply_spec(self) -> Mapping[str, PartSpec]:
        parse_layers(self.features, self.layers)
        self.mechanism  # noqa: B018  calibrates the noise, and refuses an ε that no noise achieves
        if self.task.secagg_threshold:
            return {"sums": PartSpec("sum", "int64", self.numbers, limit=self.largest)}
        return {"sums": PartSpec("sum", "bytes", self.numbers, limit=2.0**40, unpack=lambda _, a: self.unpacked(a))}

    def unpacked(self, coded: Array) -> Array:
        """Decode one client's sums, and refuse those that are impossible for the number of images they count."""
        summary, sums = feature_summary(self), unpack(coded, self.numbers)
        most = self.task.images or self.max_per_class
        expected = SumBounds(summary.d, summary.grid, summary.count, self.sigma, most, self.task.images)
        expected.check(sums.reshape(self.kinds, -1))
        return sums

    @property
    def kinds(self) -> int:
        """Rows of the sums: one per class."""
        return max(self.task.classes, 1)

    @cached_property
    def numbers(self) -> int:
        """Number of sums that a client sends."""
        plan, layers = layer_plan(self.features), parse_layers(self.features, self.layers)
        return self.kinds * (1 + 2 * pooled_size(plan, layers, self.pool_size, self.task.shape))

    @property
    def largest(self) -> int:
        """Largest noisy sum of one client under secure aggregation; the modulus has room for all clients together.

        Half of it is for the sum itself: a larger sum is clipped there, which increases no difference of two sums.
        """
        return int(2 ** (1 + math.ceil(math.log2(self.max_per_class * feature_summary(self).count))))

    @property
    def max_images_per_client(self) -> int:
        return self.max_per_class * self.kinds

    @property
    def feature_network(self) -> str:
        return self.features
