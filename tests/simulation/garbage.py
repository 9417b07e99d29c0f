"""What nobody can read, whatever it is written to."""

GARBAGE = (b"\xff\xfe", b"[]", b'{"version":7}', b'{"version":1,"subscr')
