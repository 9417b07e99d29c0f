"""Members from outside: their registrations, timers, commands and offsets, on behalf of a front end."""
