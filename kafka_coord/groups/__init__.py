"""Groups for operators: the same values and verbs for both kinds, managed and client-assigned."""
