"""The ``kafka-coord`` commands of this distribution: ``bench``, ``demo``, ``dev`` and the sample job of ``pipeline``."""
