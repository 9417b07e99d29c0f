"""The events of the world that real sites have: brokers, topics, rights and clients that do what they may do.

Each event is a *scene*: it brings topics, groups and members of its own, does what its name says, waits until its
members have read everything that they must read, and records what it observed. So a scene can run amid other faults,
where the judge applies only the rules without a time limit, or alone, where it applies all. ``scene`` has what scenes
need, ``topics``, ``servers`` and ``clients`` have the scenes.
"""
