"""Limits that a client's owner sets on the answers that are computed from images: a policy and a privacy budget."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.methods.base import Method
from vitrail.privacy.budget import Budget
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.policy import PUBLIC_REASON, Policy
from vitrail.utils.errors import Refused
from vitrail.utils.state import State


@dataclass(frozen=True)
class OwnerLimits:
    """Policy and budget of a client's owner; None: no limit."""

    policy: Policy | None
    budget: Budget | None

    def counted(self, mechanism: Mechanism | None) -> Mechanism | None:
        """Return the mechanism with the noise that counts under the policy."""
        return mechanism if mechanism is None or self.policy is None else self.policy.counted(mechanism)

    def check(self, method: Method, tree: State, request: str, again: bool) -> bool:
        """Check that one more answer is allowed.

        Args:
            method: The method of the run.
            tree: The client's private state.
            request: Name of the request, under which the budget is charged.
            again: Whether this request was started, and counted, before a crash.

        Returns:
            Whether the budget must be charged for this answer.

        Raises:
            Refused: The policy or the budget does not allow it.
        """
        if self.policy is not None:
            self.policy.check(method, tree.get("given", 0) - again)  # a server may request more than planned
        mechanism = self.counted(method.mechanism)
        once = mechanism is not None and mechanism.once
        repeats = tree["trained"] and once
        if once and tree.get("failed") and not repeats:
            raise Refused("its one release of this run failed; a second would draw new noise", PUBLIC_REASON)
        if self.budget is None or repeats or again or self.budget.has(request):
            return False
        self.budget.check(mechanism)
        return True

    def charge(self, method: Method, run: bytes, round_: int, request: str) -> None:
        """Charge the budget for an answer, before it is computed: a failure is an answer, too."""
        if self.budget is not None:
            self.budget.charge(self.counted(method.mechanism), run, round_, request)
