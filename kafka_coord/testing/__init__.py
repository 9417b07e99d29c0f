"""Clusters for the tests of applications: a fake one in memory, and a real one that starts within seconds.

:class:`~kafka_coord.testing.fake_cluster.FakeCluster` needs nothing but this package. The fixtures
:mod:`~kafka_coord.testing.fixtures` also start a real cluster, which needs ``pip install 'kafka-coord[dev]'``. Both
have the same methods, and tests/testing/test_contract.py runs the same tests against both.
"""

from kafka_coord.testing.fake_cluster import FakeCluster

__all__ = ["FakeCluster"]
