"""Mutation testing: changes the code at random places, one at a time, and counts how many changes make a test fail.

``scripts/mutate`` runs it. :mod:`~tests.mutation.mutator` makes the changes, :mod:`~tests.mutation.targets` says which
tests must notice them, :mod:`~tests.mutation.trial` tries one, :mod:`~tests.mutation.run` is the command.
"""
