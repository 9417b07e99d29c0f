"""Members without a ZooKeeper session: their registrations, timers, commands and offsets, for any front end."""
