"""The library's readers and the producer of the end-to-end tests, for groups of both kinds."""

from tests.end_to_end.conftest import numbered, reader

__all__ = ["numbered", "reader"]
