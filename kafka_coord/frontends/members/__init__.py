"""Handles registrations, timers, commands and offsets for members without a ZooKeeper session, in any front end."""
