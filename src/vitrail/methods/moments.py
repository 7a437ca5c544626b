"""One-shot moments: clients send noised sums of features once, and the server finds a mask that matches them.

PRISM's loss (Eq. 1) needs only sums over each client's pictures, so these can be released once, as DP-MEPF does with
central data (Harder, Jalali, Sutherland, Park; 2023). In round 0 every client sends its class sums (see
privacy/feature_sums.py); all later rounds are the server's alone and follow from them, so ε does not grow. Sums add up:
how pictures are divided among clients changes nothing but the noise. With secure aggregation the server sees the total
alone, and each client adds only its share of one noise.

Where the server sees single replies, it refuses sums that the images they count cannot give
(privacy/feature_sums.py, Plausible).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from vitrail.data.dataset import Images
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums
from vitrail.methods.masks import MaskSettings
from vitrail.methods.prism.loss import Averaged, feature_sums, matching, summary_of
from vitrail.nets.feature_moments import FeatureMoments as FakeMoments
from vitrail.nets.features import parse_layers, plan_of
from vitrail.privacy.feature_sum_messages import Plausible, pack, unpack
from vitrail.privacy.feature_sums import noise_share, noised, pooled_size, sensitivity, why
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class Moments(MaskSettings):
    """The two halves of one-shot moments."""

    privacy: Annotated[
        Literal["moments", "none"], Field(description="noised sums, or sums as they are (not private)")
    ] = "moments"
    pool_size: Annotated[
        int, Field(ge=1, description="a layer of ψ is averaged to at most this many places a side: fewer, larger sums")
    ] = 8
    max_colluding: Annotated[
        int, Field(ge=0, description="with secagg_threshold=: how many clients may side with the server, at most")
    ] = 0

    max_per_class: Annotated[
        int,
        Field(
            ge=1,
            le=10**8,
            description="images per class and client, at most. With secure aggregation the client drops the rest; "
            "otherwise, in deployment, the server refuses more",
        ),
    ] = 16_000

    mechanisms: ClassVar = ("moments",)
    default_epsilon: ClassVar = 9.8
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 41}

    @property
    def kinds(self) -> int:
        """Rows of the sums: one for each class."""
        return max(self.task.classes, 1)

    @property
    def numbers(self) -> int:
        """How many sums a client sends."""
        plan, layers = plan_of(self.features), parse_layers(self.features, self.layers)
        chosen = range(len(plan.widths)) if layers is None else layers
        return self.kinds * (1 + 2 * pooled_size(plan, chosen, self.pool_size, self.task.shape))

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        secure = self.task.secagg_threshold
        if secure and secure <= self.max_colluding:
            raise VitrailError(
                f"max_colluding={self.max_colluding} of secagg_threshold={secure}: somebody must be left to add noise"
            )
        trust = "nobody: noise is added before anything leaves the client"
        if secure:
            honest = secure - self.max_colluding
            trust = (
                f"at least {honest} of the clients that answer add their share of the noise and keep it to "
                "themselves, and the server hands on everybody's keys as they are, or clients know them (peer-keys)"
            )
        return Mechanism(
            name="moments",
            unit="example",
            adjacency="replace one",
            sensitivity=sensitivity(self.kinds),
            why=why(self.kinds),
            noise=Noise(1.0, discrete=bool(secure)),
            once=not secure,  # a second secure sum, after a void round, has fresh noise: it is a second release
            leaves=f"{self.numbers:,} noised sums of features, once"
            + (", of which only the total is seen" * bool(secure)),
            trust=trust,
            noised_by="all clients" if secure else "client",
            own_share=1 / math.sqrt(secure - self.max_colluding) if secure else 0.0,
        )

    @property
    def max_replies(self) -> int:
        """A client is asked once."""
        return 1

    @property
    def sigma(self) -> float:
        """σ of the noise that the mechanism needs, on the grid of the sums."""
        return self.mechanism.sigma * summary_of(self).grid if self.mechanism else 0.0

    @property
    def share(self) -> float:
        """σ of what one client adds: all of it, or so much that those who can be relied on add up to all."""
        return (
            self.sigma / math.sqrt(self.task.secagg_threshold - self.max_colluding)
            if self.task.secagg_threshold
            else self.sigma
        )

    @property
    def largest(self) -> int:
        """Of one client's noised sum under secure aggregation: the modulus must hold all of them together.

        Half of it is for the sum; what is larger is cut there, which moves no two sums further apart.
        """
        return int(2 ** (1 + math.ceil(math.log2(self.max_per_class * summary_of(self).count))))

    def reply_spec(self) -> Mapping[str, PartSpec]:
        parse_layers(self.features, self.layers)
        self.mechanism  # noqa: B018  an ε that cannot be had shows here
        if self.task.secagg_threshold:
            return {"sums": PartSpec("sum", "int64", self.numbers, limit=self.largest)}
        return {"sums": PartSpec("sum", "bytes", self.numbers, limit=2.0**40, unpack=lambda _, a: self.unpacked(a))}

    def unpacked(self, coded: Array) -> Array:
        """One client's sums, if so many images could give them."""
        summary, sums = summary_of(self), unpack(coded, self.numbers)
        most = self.task.images or self.max_per_class
        expected = Plausible(summary.d, summary.grid, summary.count, self.sigma, most, self.task.images)
        expected.check(sums.reshape(self.kinds, -1))
        return sums

    # -- server -----------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """A seed: W and the first scores s_0 follow from it."""
        if start is not None:
            raise VitrailError("init_from=: moments starts from what clients send, not from an earlier run")
        seed = rng.child("network").seed()
        return {"seed": seed, "s": torch.from_numpy(scores.real(self.first_scores(seed))), "t": 0}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Clients are asked until a round has closed, then never again."""
        return server, [] if "sums" in server else clients

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """There is nothing to tell: what is asked for stands in the settings."""
        return Broadcast({})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Keep the sums; then descend on the distance to them, some iterations a round."""
        if "sums" not in server:
            total = sums.values["sums"].reshape(self.kinds, -1)
            return {**server, "sums": total, "clients": sums.clients, "t": 1}
        loss = self.loss(server)
        s = server["s"].to(self.task.device).clone().requires_grad_()
        optimizer = self.adam(s, server["t"], server.get("optimizer", {}))
        self.descend(self.net(server["seed"]), s, loss, optimizer, rng.child("training").torch())
        after = {"s": s.detach().cpu(), "t": server["t"] + 1, "optimizer": dict(optimizer.state[s])}
        if loss.smooth is not None:
            after |= {"smooth": loss.smooth.tree(), "batches": loss.batches}
        return {**server, **after}

    def loss(self, server: State) -> Averaged:
        """What the server trains against; the average of its fakes' moments goes on where the last round ended."""
        sigma = self.share * math.sqrt(server["clients"])
        loss = matching(self, server["sums"], sigma, self.smoothing, {})
        if "smooth" in server:
            loss.smooth, loss.batches = FakeMoments.from_tree(server["smooth"], self.task.device), server["batches"]
        return loss

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """A seed and a mask, as PRISM's."""
        return self.models(server["seed"], scores.on_grid(server["s"].numpy()), server["t"] > 1)

    # -- client -----------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:  # noqa: ARG002
        """Sums of features by class, and noise. Asked again, as after a void round, a client sends the same.

        Not so in secure sums: the difference of two with the same noise would show what one client sent.
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
