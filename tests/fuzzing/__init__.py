"""Hostile input for every decoder: good values with something wrong in them.

:mod:`targets` names the decoders with samples of what they take and the one error they may raise; :mod:`mutations`
spoils samples; :mod:`judge` tries one input and says what is wrong with how it was taken; :mod:`run` is
``scripts/fuzz``.
"""
