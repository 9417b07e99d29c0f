"""A consumer written from docs/protocol.md alone, and what it does in one group with the library's own."""
