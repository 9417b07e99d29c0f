"""The sample job on the demo's flights; ``kafka-coord pipeline run flights`` runs it.

``flights`` turns records into rows of a table, ``delays`` adds up what the table holds.
"""
