"""Handles registrations, timers, commands and offsets for members without a ZooKeeper session, for any front end."""
