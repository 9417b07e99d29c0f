"""Hostile input for every decoder: valid values with faults in them.

:mod:`targets` names the decoders, with samples of their input and the only error that they may raise. :mod:`mutations`
damages samples. :mod:`judge` tries one input and reports what is wrong. :mod:`run` is ``scripts/fuzz``.
"""
