"""Handles registrations, timers, commands and offsets of members without a ZooKeeper session, for any front end."""
