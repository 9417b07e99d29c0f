"""Mutation testing: changes the code at random places, one at a time, and counts which changes the tests notice.

``scripts/mutate`` runs it: :mod:`~tests.mutation.mutator` makes the changes, :mod:`~tests.mutation.targets` says which
tests have to notice them, :mod:`~tests.mutation.trial` tries one, :mod:`~tests.mutation.run` is the command.
"""
