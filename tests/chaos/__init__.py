"""Chaos: real servers and consumers under seeded faults, judged from outside by what they wrote (docs/reliability.md).

``journal`` is what a run writes, and the only thing the testbed (which does) and the judge (which reads) share.
"""
