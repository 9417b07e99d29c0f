"""The topics that a KIP-848 client subscribes to: names, a regular expression, or both. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kafka_coord.model import Subscription


class Topics(NamedTuple):
    """``None``: the client did not send it, because it has not changed."""

    names: frozenset[str] | None = None
    regex: str | None = None

    @property
    def is_told(self) -> bool:
        return self.names is not None or self.regex is not None

    def since(self, before: Topics) -> Topics:
        """Fills the parts that the client did not send from ``before``."""
        names = before.names if self.names is None else self.names
        regex = before.regex if self.regex is None else self.regex
        return Topics(names or frozenset(), regex or "")

    def subscription(self) -> Subscription:
        """The union of both, as one pattern if there is a regular expression. Raises :class:`InvalidPattern`."""
        names = sorted(self.names or ())
        if not self.regex:
            return Subscription.to(names)
        regex = self.regex.replace(",", "\\,").replace(" ", "\\x20")  # both have another meaning in topic patterns
        return Subscription.matching("|".join([*(name.replace(".", "\\.") for name in names), f"(?:{regex})"]))


UNCHANGED = Topics()
