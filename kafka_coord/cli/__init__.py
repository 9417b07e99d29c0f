"""The ``kafka-coord`` command line: click commands that print results and exit."""
