"""Raises the limit on open files, because each connection needs one or two file descriptors."""

from __future__ import annotations

import resource
from contextlib import suppress

OTHER_DESCRIPTORS = 200
"""How many file descriptors are reserved for everything except client connections."""


def allowed_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def allow_descriptors(wanted: int) -> int:
    """Raises the limit on open files to ``wanted``, or as far as the process is allowed to. Returns the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed_descriptors() < wanted:
        with suppress(ValueError, OSError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return allowed_descriptors()
