"""The ``kafka-coord`` commands of this distribution: ``bench``, ``demo``, ``dev`` and parts of ``pipeline``."""
