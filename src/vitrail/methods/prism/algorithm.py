"""PRISM: Privacy-Preserving Improved Stochastic Masking for Federated Generative Models.

Seo, Han, Yoo; ICLR 2025. Every party builds the same frozen random network W from one seed; clients learn scores s for
a mask over it by matching feature moments (Eq. 1), and upload one binary mask; the server averages masks into θ
(Algorithm 1), moves its scores part of the way (MADA), and may take some layers as scores (PRISM-α, Algorithm 2).

What differs from the paper, and why (docs/results.md has the figures): real moments are computed once per client, as
they never change; with labels, moments are matched per class; uploaded masks are drawn jointly
(sampling="independent" is the paper's), because K independent draws carry θ away at every round; the fakes' moments
are smoothed exponentially (average="adam" is the paper's); scores start wider and move faster, and the learning rate
falls along a cosine (score_std=1, lr=0.1 and schedule="constant" are the paper's); the stored mask is θ > 1/2
(final_mask="sample" is the paper's). All that travels is coded under what both sides know (coding="packed" is not).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums
from vitrail.methods.prism import mechanisms as prism_privacy
from vitrail.methods.prism.loss import (
    AdamAveraged,
    Adversary,
    Loss,
    eq1,
    public_features,
    real_moments,
    released_loss,
)
from vitrail.methods.prism.settings import PrismSettings
from vitrail.nets.features import parse_layers
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.codecs import Array
from vitrail.wire.entropy import decode, decode_values, encode, encode_values
from vitrail.wire.klms import Klms, stream_of, with_stream
from vitrail.wire.message import NO_BASE, digest
from vitrail.wire.scores import Scores


@dataclass(frozen=True)
class Prism(PrismSettings):
    """PRISM's two halves."""

    # -- what both sides know ---------------------------------------------------------------------------------------

    @cached_property
    def split(self) -> tuple[slice, slice]:
        """Elements that travel as a mask, and those of PRISM-α's score layers: α% of the layers, the last or first."""
        n = round(self.alpha / 100 * len(self.sizes))
        if self.score_layers == "forward":
            cut = sum(self.sizes[:n])
            return slice(cut, self.size), slice(0, cut)
        cut = sum(self.sizes[: len(self.sizes) - n])
        return slice(0, cut), slice(cut, self.size)

    @property
    def elements(self) -> tuple[int, int]:
        """How many elements travel as a mask, and how many as scores."""
        masked, scored = self.split
        return masked.stop - masked.start, scored.stop - scored.start

    def reply_spec(self) -> Mapping[str, PartSpec]:
        parse_layers(self.features, self.layers)
        masked, scored = self.elements
        prism_privacy.check(self)
        declared = {"metric.loss": PartSpec("sum", "float32", 1, limit=2.0**40)} if self.tells_loss else {}
        if masked:
            coded = PartSpec("sum", "bytes", masked, limit=1.0, least=0.0, unpack=self.decode_mask)
            declared["mask"] = PartSpec("sum", "u1", masked, limit=1, least=0) if self.plain_bits else coded
        if scored:
            declared["scores"] = PartSpec("sum", self.score_codec, scored, limit=32.0)
        return declared

    def base_mechanism(self) -> Mechanism | None:
        return None if self.privacy == "none" else prism_privacy.mechanism(self)

    def multiplier(self, found: Mechanism) -> float:
        return prism_privacy.paper_multiplier(self) if self.privacy == "paper" else super().multiplier(found)

    def bound(self, found: Mechanism) -> str:
        return prism_privacy.bernoulli_bound(self, found)

    # -- server -----------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """A seed: W and the first scores s_0 follow from it."""
        if start is None:
            seed = rng.child("network").seed()
            return {"seed": seed, "s": self.first_scores(seed), "closed": 0, "told": {}}
        if start["s"].shape != (self.size,):
            raise VitrailError(
                "init_from= names a run with another generator, picture size or labels; start from one like this"
            )
        return {**start, "told": {}}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Everyone asked takes part, in a stratum each. All of s_t is coded only if somebody needs it."""
        opened = {**server, "who": list(clients), "draws": rng.child("public draws").seed()}
        if server["closed"] and not all(self.holds(server, client) for client in clients):
            opened["full"] = encode_values(server["s"])
        return opened, clients

    def holds(self, server: State, client: str) -> bool:
        """Whether a client took part in the last round, and so holds what it began with."""
        return bool(server["told"].get(client) == server["closed"] - 1)

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:
        """s_t: for a client that holds s_{t-1} the masks' counts, and MADA's λ; else whole; at first, from the seed."""
        parts: dict[str, tuple[str, Array]] = {
            name: ("seed", np.array([server[name]], np.uint64)) for name in ("seed", "draws")
        }
        parts["stratum"] = ("int32", np.array([server["who"].index(client), len(server["who"])], np.int32))
        base = NO_BASE
        if server["closed"] and self.holds(server, client) and not full:
            base = server["base"]
            parts["step"] = ("int32", np.array([server["clients"], server["lambda"]], np.int32))
            parts |= {name: ("bytes", server[name]) for name in ("counts", "changes") if name in server}
        elif server["closed"]:
            parts["full"] = ("bytes", server["full"] if "full" in server else encode_values(server["s"]))
        masked, scored = self.elements
        numbers = {"counts": masked, "changes": scored, "full": self.size}
        return Broadcast(parts, base, numbers)

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """θ_agg = mean of the masks, s_agg = logit(θ_agg); score layers: the mean; then MADA's step."""
        s_t, t = server["s"], server["closed"]
        s_agg, after = s_t.copy(), {"seed": server["seed"]}
        masked, scored = self.split
        if "mask" in sums.values:
            counts = sums.values["mask"].astype(np.int32)
            s_agg[masked] = scores.from_counts(counts, sums.clients, self.theta_clamp)
        if "scores" in sums.values:
            mean = sums.values["scores"] / sums.clients
            theta = self.score_form == "theta"
            s_agg[scored] = scores.from_theta(mean, self.theta_clamp) if theta else scores.on_grid(mean)
        lam = scores.ONE
        if self.mada != "off":
            lam = scores.distance(s_t, s_agg, rng.child("mada").numpy() if self.mada == "sampled" else None)
        s = scores.step(s_t, s_agg, lam)
        if "mask" in sums.values:
            known, alphabet = scores.levels(s_t[masked], sums.clients + 1), sums.clients + 1
            after["counts"] = encode(counts, known, alphabet, packed=self.coding == "packed")
        if "scores" in sums.values:
            after["changes"] = encode_values(s[scored].astype(np.int32) - s_t[scored])
        told = {**server["told"], **dict.fromkeys(server["who"], t)}  # they may hold what this round began with
        after |= {"s": s, "base": digest(s_t.tobytes()), "clients": sums.clients, "lambda": lam}
        return {**after, "closed": t + 1, "told": told}

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """The supermask M* over W, a seed and a coded mask; and θ, from which papers draw a mask a batch."""
        return self.models(server["seed"], server["s"], bool(server["closed"]))

    # -- client -----------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, client side."""
        told, device = message.parts, self.task.device
        s_t = self.read(state, told)
        net = self.net(_first(told["seed"]))
        loss = self.loss_of(data, rng, state.get("loss", {}))

        s = torch.from_numpy(scores.real(s_t)).to(device).requires_grad_()
        optimizer = self.adam(s, message.round, state.get("optimizer", {}))
        mean = self.descend(net, s, loss, optimizer, rng.child("training").torch())

        sent = self.upload(s.detach().cpu(), s_t, message, rng)
        if self.tells_loss:
            sent["metric.loss"] = np.array([mean], np.float32)
        kept: State = {"optimizer": dict(optimizer.state[s]), "loss": loss.kept(), "s": s_t}
        return kept, Reply(sent, holds=digest(s_t.tobytes()))

    def read(self, state: State, told: Mapping[str, Array]) -> Scores:
        """s_t from what the server told."""
        if "full" in told:
            return decode_values(told["full"], self.size)
        if "step" not in told:
            return self.first_scores(_first(told["seed"]))
        clients, lam = map(int, told["step"])
        s_before: Scores = state["s"]
        s_agg, (masked, scored) = s_before.copy(), self.split
        if "counts" in told:
            known = scores.levels(s_before[masked], clients + 1)
            s_agg[masked] = scores.from_counts(decode(told["counts"], known, clients + 1), clients, self.theta_clamp)
        s = scores.step(s_before, s_agg, lam)
        if "changes" in told:
            s[scored] = s_before[scored] + decode_values(told["changes"], self.elements[1])
        return s

    def upload(self, s: Tensor, s_t: Scores, message: ServerMessage, rng: Rng) -> dict[str, Array]:
        """What leaves: a mask M ~ Bern(θ) for mask layers, scores for score layers (Algorithm 2)."""
        theta = torch.sigmoid(s)
        if self.privacy in ("mask-update", "paper"):
            theta = prism_privacy.noised_theta(self, theta, s_t, self.source(rng.child("noise")))
            s = torch.logit(theta)
        (masked, scored), parts = self.split, {}
        prior, (has_mask, has_scores) = s_t[masked], self.elements
        if has_mask and self.coding == "klms":
            k, draws = _first(message.parts["stratum"]), _first(message.parts["draws"])
            own = rng.child("upload").numpy()
            parts["mask"] = with_stream(k, self.klms.encode(s.numpy()[masked], prior, stream(draws, k), own))
        elif has_mask:
            mask = (self.uniform(message, rng) < theta).numpy()[masked]
            packed = self.coding == "packed"
            parts["mask"] = mask if self.plain_bits else encode(mask, scores.levels(prior), 2, packed=packed)
        if has_scores:
            layers = theta if self.score_form == "theta" else s.clamp(-32, 32)
            parts["scores"] = layers.numpy()[scored]
        return parts

    def decode_mask(self, server: State, coded: Array) -> Array:
        """A client's mask, as the server reads it under the s_t that it told."""
        prior = server["s"][self.split[0]]
        if self.coding != "klms":
            return decode(coded, scores.levels(prior), 2)
        k, chosen = stream_of(coded)
        if k >= len(server["who"]):
            raise Malformed(f"stream {k} of {len(server['who'])}")
        return self.klms.decode(chosen, prior, stream(server["draws"], k))

    @property
    def tells_loss(self) -> bool:
        """Whether the loss may leave: not where only the mask is covered by noise."""
        return self.privacy in ("none", "moments")

    @property
    def plain_bits(self) -> bool:
        """Whether masks leave as bits, to be added up unseen: what is coded can only be read singly."""
        if self.task.secagg_threshold and self.coding == "klms":
            raise VitrailError('coding="klms" is read mask by mask, secure aggregation adds them unseen: use "packed"')
        return bool(self.task.secagg_threshold)

    @property
    def klms(self) -> Klms:
        """The coder of coding="klms"."""
        return Klms(self.klms_bits, self.klms_block)

    def uniform(self, message: ServerMessage, rng: Rng) -> Tensor:
        """Uniform numbers to compare θ with: a client's own, or one draw for all clients shifted by k/K for the k-th.

        Either way each mask is Bern(θ). With independent draws the mean of K masks has variance θ(1-θ)/K at every
        round, which carries the scores away from where training left them; shifted draws meet it to within 1/K.
        """
        if self.sampling == "independent":
            return torch.rand(self.size, generator=rng.child("upload").torch())
        k, of = map(int, message.parts["stratum"])
        common = Rng((_first(message.parts["draws"]),)).child("strata").torch()
        return (torch.rand(self.size, generator=common) + k / of) % 1

    def loss_of(self, data: Images, rng: Rng, kept: State) -> Loss:
        """What this client trains against."""
        classes, device = self.task.classes, self.task.device
        if self.loss == "gan":
            return Adversary(data, self.batch_size, classes, device, rng.child("adversary"), kept)
        weight = self.smoothing if self.moment_averaging == "exponential" else 1.0
        if self.privacy == "moments":
            return released_loss(self, data, self.source(rng.child("moments")), weight, kept)
        psi, psi_digest = public_features(self.features, self.layers, device)
        real = real_moments(psi, psi_digest, data, classes, device, self.batch_size)
        if self.moment_averaging == "adam":
            return AdamAveraged(psi, real, self.ama_lr, kept)
        return eq1(psi, real, weight)


def stream(draws: int, k: int) -> int:
    """The randomness that the k-th client of a round shares with the server."""
    return Rng((draws,)).child("klms", k).seed()


def _first(value: Any) -> int:
    """A whole number, alone or in an array of one."""
    return int(np.ravel(value)[0])
