"""Pages that need nothing but themselves: what the demo's report and those of the benches are written with."""
