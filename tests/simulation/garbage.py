"""Bytes that are unreadable as the value of any znode."""

GARBAGE = (b"\xff\xfe", b"[]", b'{"version":7}', b'{"version":1,"subscr')
