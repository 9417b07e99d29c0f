"""Handles the subscriptions of KIP-848 clients: topic names, a regular expression, or both. Does no I/O."""

from __future__ import annotations

from typing import NamedTuple

from kafka_coord.model import Subscription


class ManagedTopics(NamedTuple):
    """A subscription. A part that the client omitted because it is unchanged is ``None``."""

    names: frozenset[str] | None = None
    regex: str | None = None

    @property
    def is_told(self) -> bool:
        return self.names is not None or self.regex is not None

    def since(self, before: ManagedTopics) -> ManagedTopics:
        """Returns the subscription with any missing part taken from ``before``."""
        names = before.names if self.names is None else self.names
        regex = before.regex if self.regex is None else self.regex
        return ManagedTopics(names or frozenset(), regex or "")

    def subscription(self) -> Subscription:
        """Returns a subscription to all of the topics, combined into one pattern if there is a regular expression.
        Raises :class:`InvalidPattern`."""
        names = sorted(self.names or ())
        if not self.regex:
            return Subscription.to(names)
        if not names:
            return Subscription.matching(self.regex)
        return Subscription.matching("|".join([*(name.replace(".", "\\.") for name in names), f"(?:{self.regex})"]))


UNCHANGED = ManagedTopics()
