"""The sample job on the demo's flights, which ``kafka-coord pipeline run flights`` runs.

``flights`` turns records into rows, ``streaming`` runs the query that writes them to a table, and ``delays`` summarises
the table.
"""
