"""The sample job on the demo's flights; ``kafka-coord pipeline run flights`` runs it.

``flights`` turns records into rows, ``streaming`` runs the query that writes them into a table, and ``delays`` adds up
the table.
"""
