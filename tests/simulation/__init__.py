"""Deterministic simulation: real coordinators and connectors, a simulated ZooKeeper, and one seeded scheduler.

Any seed replays exactly. ``server`` is ZooKeeper (a leader and lagging followers), ``store`` is one session's view of
it with faults, and ``scheduler`` decides who runs next. ``cluster`` runs a history: ``launching`` starts its processes,
``network`` carries their frames, and ``faults`` injects faults. ``invariants`` checks the effects, ``shrinking`` finds
a short history of a failure, and ``run`` is the command ``scripts/simulate``.
"""
