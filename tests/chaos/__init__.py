"""Chaos runs: real servers and consumers under seeded faults, and a judge of the files that they wrote
(docs/reliability.md).

``journal`` defines these files. The testbed and the judge share nothing else.
"""
