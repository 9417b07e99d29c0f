"""Deterministic simulation: real coordinators and connectors, a simulated ZooKeeper, and one seeded scheduler.

Any seed replays exactly. Where to look: ``server`` is ZooKeeper (a leader and lagging followers), ``store`` one
session's view of it with faults, ``scheduler`` decides who runs next. ``cluster`` runs a history: ``launching`` starts
its processes, ``network`` carries their frames, ``faults`` breaks what it can. ``invariants`` checks what happened,
``shrinking`` finds the shortest story of a failure, ``run`` is the command ``scripts/simulate``.
"""
