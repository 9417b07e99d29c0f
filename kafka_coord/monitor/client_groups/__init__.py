"""Shows and changes client-assigned groups by asking the instances that coordinate them."""
