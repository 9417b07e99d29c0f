"""The topics that a KIP-848 client subscribes to: names, a regular expression, or both. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kafka_coord.model import Subscription


class Topics(NamedTuple):
    """``None``: the client has not said it, because it has not changed."""

    names: frozenset[str] | None = None
    regex: str | None = None

    @property
    def is_told(self) -> bool:
        return self.names is not None or self.regex is not None

    def since(self, before: Topics) -> Topics:
        """These, if the client subscribed to ``before`` until now."""
        names = before.names if self.names is None else self.names
        regex = before.regex if self.regex is None else self.regex
        return Topics(names or frozenset(), regex or "")

    def subscription(self) -> Subscription:
        """The union, as one pattern where there is a regular expression. Raises :class:`InvalidPattern`."""
        names = sorted(self.names or ())
        if not self.regex:
            return Subscription.to(names)
        regex = self.regex.replace(",", "\\,").replace(" ", "\\x20")  # both mean something else in topic patterns
        return Subscription.matching("|".join([*(name.replace(".", "\\.") for name in names), f"(?:{regex})"]))


UNCHANGED = Topics()
