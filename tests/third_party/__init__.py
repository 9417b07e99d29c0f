"""A consumer written from docs/protocol.md alone, in one group with the library's own."""
