"""Clusters for testing applications: a fake one in memory, and a real one that starts within seconds.

:class:`~kafka_coord.testing.fake_cluster.FakeCluster` needs only this package. The fixtures in
:mod:`~kafka_coord.testing.fixtures` also start a real cluster, which needs ``pip install . ./kafka_coord/dev`` in a
clone. Both clusters have the same methods, and tests/testing/test_contract.py runs the same tests against both.
"""

from kafka_coord.testing.fake_cluster import FakeCluster

__all__ = ["FakeCluster"]
